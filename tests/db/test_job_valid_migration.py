"""The migrations 0034 to 0036: one constraint that calls a function replaces the seven of the jobs."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from delaytasks.models import Job
from tests.support.notices import collected_notices
from tests.support.servers import postgres_binaries

FORMER = {"state_known", "live_or_ended", "lease_if_reserved", "died_if_dead", "sane", "priority_known"}
module: Any = import_module("delaytasks.migrations.0034_job_valid")


def migrate(name: str) -> None:
    MigrationExecutor(connection).migrate([("delaytasks", name)])


def checks() -> set[str]:
    """Return the names of the table's named CHECK constraints, without their prefix."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT conname FROM pg_constraint WHERE conrelid = 'delaytasks_job'::regclass AND contype = 'c'"
            )
            return {name.removeprefix("delaytasks_job_") for (name,) in cursor.fetchall()}
        cursor.execute("SELECT sql FROM sqlite_master WHERE name = 'delaytasks_job'")
        return set(re.findall('CONSTRAINT "delaytasks_job_([a-z_]+)" CHECK', cursor.fetchone()[0]))


@contextmanager
def lock_timeouts() -> Iterator[set[str]]:
    """Collect the lock_timeout with which the tables are altered inside the block."""
    found: set[str] = set()

    def execute(call: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if "ALTER TABLE" in str(sql):
            found.add(context["connection"].connection.execute("SHOW lock_timeout").fetchone()[0])
        return call(sql, params, many, context)

    with connection.execute_wrapper(execute):
        yield found


class RoutesByModel:
    """A database router: all models but two have their tables in another database."""

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool:
        return model_name in ("job", "schedulerun")


def insert(key: str, **changes: Any) -> None:
    now = timezone.now()
    Job(**({"topic": "t", "key": key, "due_at": now, "ttr_ms": 1000, "created_at": now} | changes)).save()


@pytest.fixture
def former(transactional_db: None) -> Iterator[None]:
    """The database before these migrations; they are applied again afterwards."""
    Job.objects.all().delete()
    try:
        migrate("0033_topic_target")
        yield
    finally:
        Job.objects.all().delete()
        newest = MigrationExecutor(connection).loader.graph.leaf_nodes("delaytasks")
        MigrationExecutor(connection).migrate(newest)


def test_the_constraints_are_replaced_and_come_back_when_the_migrations_are_reversed(former: None) -> None:
    extra = {"due_readable"} if connection.vendor == "postgresql" else set()
    assert checks() == FORMER | extra
    insert("kept")
    migrate("0036_one_job_constraint")
    assert checks() == {"valid"}
    migrate("0033_topic_target")
    assert checks() == FORMER | extra
    assert Job.objects.get().key == "kept"
    with pytest.raises(IntegrityError, match="delaytasks_job_sane"), transaction.atomic():
        insert("", ttr_ms=1)


@pytest.mark.only_on("postgresql")
def test_both_the_former_constraints_and_the_new_one_hold_until_the_former_ones_are_dropped(former: None) -> None:
    migrate("0035_job_valid_validated")
    assert checks() == FORMER | {"due_readable", "valid"}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'delaytasks_job'::regclass AND NOT convalidated"
        )
        assert cursor.fetchall() == [("delaytasks_job_due_readable",)]


@pytest.mark.only_on("postgresql")
def test_reversed_migrations_leave_validated_constraints(former: None) -> None:
    migrate("0036_one_job_constraint")
    migrate("0033_topic_target")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'delaytasks_job'::regclass AND NOT convalidated"
        )
        assert cursor.fetchall() == [("delaytasks_job_due_readable",)]
        cursor.execute("SELECT count(*) FROM pg_proc WHERE proname = 'delaytasks_job_is_valid'")
        assert cursor.fetchone() == (0,)


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("former_name", "name", "routers"),
    [
        ("0027_producer_index", "0028_schedule_run", []),
        ("0027_producer_index", "0028_schedule_run", [RoutesByModel()]),
        ("0029_known_runs", "0030_finite_due_times", []),  # without a model, such a router refuses this constraint
        ("0033_topic_target", "0034_job_valid", []),
        ("0033_topic_target", "0034_job_valid", [RoutesByModel()]),
        ("0035_job_valid_validated", "0036_one_job_constraint", []),
        ("0035_job_valid_validated", "0036_one_job_constraint", [RoutesByModel()]),
    ],
)
def test_each_change_of_the_table_waits_five_seconds_for_its_lock_also_when_it_is_reversed(
    former: None, settings: Any, former_name: str, name: str, routers: list[RoutesByModel]
) -> None:
    migrate(former_name)
    settings.DATABASE_ROUTERS = routers
    for target in (name, former_name):
        with lock_timeouts() as found:
            migrate(target)
        assert found == {"5s"}, target


@pytest.mark.only_on("postgresql")
def test_a_router_that_decides_by_model_lets_the_constraint_be_added_and_removed(former: None, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [RoutesByModel()]
    migrate("0034_job_valid")
    assert "valid" in checks()
    migrate("0033_topic_target")
    assert "valid" not in checks()


@pytest.mark.only_on("postgresql")
def test_a_row_from_before_that_python_cannot_read_stops_the_validation_and_the_log_names_its_key(former: None) -> None:
    """The constraint of due times had been added without reading the table."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE delaytasks_job DROP CONSTRAINT delaytasks_job_due_readable")
        insert("endless")
        cursor.execute("UPDATE delaytasks_job SET due_at = 'infinity'")
        cursor.execute("ALTER TABLE delaytasks_job ADD CONSTRAINT delaytasks_job_due_readable CHECK (true) NOT VALID")
    with collected_notices() as notices, pytest.raises(IntegrityError, match="delaytasks_job_valid"):
        migrate("0035_job_valid_validated")
    assert 'the job with the key "endless"' in notices[0]
    Job.objects.all().delete()
    migrate("0035_job_valid_validated")


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_roles_write_jobs_where_the_site_has_revoked_functions_by_default() -> None:
    with transaction.atomic(), connection.schema_editor() as editor, connection.cursor() as cursor:
        cursor.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
        module.remove_constraint(apps, editor)
        module.add_constraint(apps, editor)
        cursor.execute("CREATE ROLE delaytasks_test_writer")
        cursor.execute("GRANT SELECT, INSERT, UPDATE ON delaytasks_job TO delaytasks_test_writer")
        cursor.execute("SET LOCAL ROLE delaytasks_test_writer")
        insert("granted")
        transaction.set_rollback(True)


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_jobs_are_written_with_an_empty_search_path_as_pg_restore_does() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = ''")
        cursor.execute("""
            INSERT INTO public.delaytasks_job
                (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error)
            VALUES ('t', 'k', 1, now(), 1, '{}', now(), 0, 0, '', '')""")
        assert cursor.rowcount == 1


@pytest.mark.only_on("postgresql")
@pytest.mark.usefixtures("transactional_db")
def test_a_dump_is_restored_with_its_jobs_and_refuses_the_same_rows() -> None:
    insert("dumped")
    settings = connection.settings_dict
    database, options = settings["NAME"], ["-h", settings["HOST"], "-U", settings["USER"]]
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    binaries, restored = postgres_binaries(), f"{database}_restored"
    dump = run([binaries / "pg_dump", *options, database]).stdout
    run([binaries / "createdb", *options, restored])
    try:
        psql = [binaries / "psql", *options, "-v", "ON_ERROR_STOP=1", "-Atd", restored]
        run(psql, input=dump)
        assert run([*psql, "-c", "SELECT key FROM delaytasks_job"]).stdout == "dumped\n"
        refused = subprocess.run([*psql, "-c", "UPDATE delaytasks_job SET state = 9"], capture_output=True, text=True)
        assert "delaytasks_job_valid" in refused.stderr
        assert "its state is unknown" in refused.stderr
    finally:
        run([binaries / "dropdb", *options, restored])
