"""A short run of `make torture`: a real installation with the quick faults one after the other.

Then deliberate breaches, to show that the tool finds them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, transaction

from delaytasks import conf
from delaytasks.mirror.redis.keys import Keys, member
from delaytasks.models import Job, MirrorMark
from delaytasks.states import State
from tests.support.servers import wait_until

from ..torture import ledger, postgresql, report, trial
from ..torture.environment import Arena, arena
from ..torture.faults import Fault, handlers, load_all
from ..torture.misbehaviours import MANNERS

pytestmark = [pytest.mark.tools, pytest.mark.on_both, pytest.mark.xdist_group("torture")]
SHORT = "torture.batch", "torture.once", "torture.relaxed"  # topics with fast handlers
QUICK = [f for f in load_all().values() if f.quick and not f.alone and settings.TEST_DB in f.databases]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Arena]:
    """A populated installation with its own servers."""
    with django_db_blocker.unblock(), arena(tmp_path_factory.mktemp("torture"), database=settings.TEST_DB) as made:
        made.populate()
        yield made


def test_the_quick_faults_break_no_promise(installation: Arena) -> None:
    verdict = trial.run(installation, QUICK, seed=1, in_turn=True)
    assert verdict.ok, f"{report.line(verdict)}\n{installation.report()}"
    assert verdict.jobs > 100
    assert verdict.begun > 100


def test_deliberate_breaches_are_found(installation: Arena) -> None:
    planted: dict[str, int] = {}
    verdict = trial.run(installation, [_fault(planted)], seed=2, mended_seconds=2)
    assert not verdict.trouble
    found = {(violation.kind, violation.job) for violation in verdict.violations}
    assert found == set(planted.items())


@pytest.mark.only_on("postgresql")
def test_a_handlers_fault_repeats_a_call_that_another_fault_has_interrupted(installation: Arena) -> None:
    ended: list[int] = []

    def end_connection(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "INSERT INTO" in sql and not ended:
            ended.append(connection.connection.info.backend_pid)
            with postgresql.connect(installation) as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", ended)
        return execute(sql, params, many, context)

    manner = MANNERS["raises"]
    with connection.execute_wrapper(end_connection):
        keys = handlers.schedule(installation, manner)
    said = {entry["n"]: entry["said"] for entry in ledger.read(installation.ledger) if entry["kind"] == "answers"}
    assert [said[key] for key in keys] == ["broken"] * manner.jobs + ["scheduled"] * manner.jobs
    handlers.await_ends(installation, manner, keys)


def _three_finished(arena: Arena) -> list[Job]:
    """Return three finished jobs that were scheduled singly; [] if there are not enough yet."""
    promised = {entry["job"] for entry in ledger.read(arena.ledger) if entry.get("said") == "scheduled"}
    done = Job.objects.filter(topic__in=SHORT, state=State.FINISHED).order_by("id")
    found = [job for job in done if job.pk in promised]
    return found[:3] if len(found) >= 3 else []


def _fault(planted: dict[str, int]) -> Fault:
    def plant(arena: Arena) -> None:
        """Break a different promise for each of three finished jobs."""
        # The first audit would repair the mirror; the next one is ten minutes away.
        wait_until(MirrorMark.objects.exclude(audit={}).exists, seconds=60, what="the first audit")
        lost, twice, drift = wait_until(lambda: _three_finished(arena), seconds=30, what="three jobs to end")
        planted.update({"lost": lost.pk, "effect twice": twice.pk, "drift": drift.pk})
        with transaction.atomic(), connection.cursor() as cursor:
            for table in ("torture_effect", "delaytasks_jobevent"):
                cursor.execute(f"DELETE FROM {table} WHERE job_id = %s", [lost.pk])
            cursor.execute("DELETE FROM delaytasks_job WHERE id = %s", [lost.pk])
        with connection.cursor() as cursor:
            columns = "job_id, attempt, at_ms"
            cursor.execute(
                f"INSERT INTO torture_effect ({columns}) SELECT {columns} FROM torture_effect WHERE job_id = %s",
                [twice.pk],
            )
        keys = Keys(conf.get().prefix, "default", conf.get().buckets)
        with contextlib.closing(arena.redis.client()) as client:
            client.zadd(keys.due(keys.bucket_of(drift.pk)), {member(drift.pk, drift.topic): 9e12})

    return Fault("deliberate breaches", "planted", plant, frozenset(), (), "plain", ("postgres", "sqlite"), False)
