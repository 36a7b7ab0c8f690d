"""Installing, removing, comparing and reinstalling the triggers: the command, the system check and `migrate`."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core import checks
from django.core.management import CommandError, call_command
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.models import Q

from delaytasks.models import AuditEntry, TimeoutMark, TimeoutTrigger
from delaytasks.timeouts import declarations
from delaytasks.timeouts.declarations import Declaration
from delaytasks.timeouts.triggers import installation, marks, statements

from ..app.models import Customer, Order, Ticket
from ..conftest import HALF_HOUR, START, live
from .conftest import OtherSession, Schema

pytestmark = [pytest.mark.on_both, pytest.mark.usefixtures("remove_triggers", "automatic")]
on_postgresql = pytest.mark.only_on("postgresql")
Declare = Callable[..., Declaration]
ORDER, CUSTOMER = Order._meta.db_table, Customer._meta.db_table


@pytest.fixture
def close(declare: Declare) -> Declaration:
    return declare(Order, after=HALF_HOUR, while_=Q(state="open", customer__active=True))


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("delaytasks", "timeouts", "triggers", *arguments, stdout=out)
    return out.getvalue()


def show() -> dict[str, Any]:
    return {each["table"]: each for each in json.loads(command("show", "--json"))}


def warnings() -> list[Any]:
    found = checks.run_checks(tags=["delaytasks"], databases=["default"])
    return [message for message in found if message.id == "delaytasks.W042"]


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def drop_triggers(table: str = ORDER) -> None:
    """As a rebuild of the table does on SQLite."""
    statements.drop(connection, table)


# The command


def test_the_command_installs_shows_and_removes(close: Declaration) -> None:
    assert {name: each["state"] for name, each in show().items()} == {ORDER: "missing", CUSTOMER: "missing"}
    assert command("install") == f"installed: {CUSTOMER}, {ORDER}\n"
    assert show()[ORDER] == {
        "table": ORDER, "columns": ["id", "created_at", "customer_id", "state"], "state": "installed", "marks": 1,
        "problem": "",
    }  # fmt: skip
    assert command("remove", CUSTOMER) == f"removed: {CUSTOMER}\n"
    assert statements.tables(connection) == {ORDER}
    assert command("remove") == f"removed: {ORDER}\n"
    assert command("remove") == "removed: nothing\n"
    assert not TimeoutMark.objects.exists()
    assert not TimeoutTrigger.objects.exists()
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "after__tables")) == [
        ("timeouts.triggers_installed", [CUSTOMER, ORDER]), ("timeouts.triggers_removed", [CUSTOMER]),
        ("timeouts.triggers_removed", [ORDER]),
    ]  # fmt: skip
    Order.objects.create()
    assert not TimeoutMark.objects.exists()


def test_what_changed_before_the_installation_is_drained_too(close: Declaration) -> None:
    order = Order.objects.create(created_at=START, customer=Customer.objects.create())
    command("install", ORDER)
    marks.drain("default")
    assert list(live()) == [f"order:{order.pk}"]


def test_a_table_that_nothing_depends_on_is_refused(close: Declaration) -> None:
    with pytest.raises(CommandError, match="No declared timeout depends on the table 'no_table'") as raised:
        command("install", ORDER, "no_table")
    assert raised.value.returncode == 2
    assert not AuditEntry.objects.exists()
    assert statements.tables(connection) == set()


@on_postgresql
def test_the_installation_does_not_wait_for_a_long_transaction(
    close: Declaration, other_session: OtherSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "LOCK_TIMEOUT_SECONDS", 0.1)
    other_session.execute(f"INSERT INTO {CUSTOMER} (active) VALUES (true)")
    with pytest.raises(CommandError, match="A transaction has been writing to the table"):
        command("install")
    assert statements.tables(connection) == set()
    other_session.commit()
    command("install")


# The system check


def test_the_check_is_silent_without_triggers_and_with_current_ones(close: Declaration) -> None:
    assert warnings() == []
    command("install")
    assert warnings() == []


def assert_mended_by_its_hint() -> None:
    (warning,) = warnings()
    program, *arguments = warning.hint.split("`")[1].split()
    assert program == "manage.py"
    call_command(*arguments, stdout=io.StringIO())
    assert warnings() == []


def test_dropped_triggers_are_reported_with_the_command_that_mends_it(close: Declaration) -> None:
    command("install")
    drop_triggers()
    assert f"{ORDER!r} in the database 'default' are not as they should be: they are missing" in warnings()[0].msg
    assert_mended_by_its_hint()


def test_triggers_without_a_newly_watched_column_are_reported(close: Declaration, declare: Declare) -> None:
    command("install")
    declare(Order, topic="order.remind", while_=Q(note=""))
    assert "their SQL is not up to date" in warnings()[0].msg
    assert_mended_by_its_hint()


@on_postgresql
def test_disabled_triggers_are_reported(close: Declaration) -> None:
    command("install")
    execute(f"ALTER TABLE {ORDER} DISABLE TRIGGER ALL")
    assert "they are disabled" in warnings()[0].msg
    assert_mended_by_its_hint()


def test_triggers_that_no_declaration_needs_are_reported(close: Declaration, declare: Declare) -> None:
    declare(Ticket, "opened_at", topic="ticket.rise")
    command("install")
    declarations.unregister("ticket.rise")
    assert "no declared timeout depends on the table" in warnings()[0].msg
    assert_mended_by_its_hint()


# Migrations


def test_migrate_reinstalls_dropped_triggers_and_marks_all_rows(close: Declaration) -> None:
    order = Order.objects.create(created_at=START, customer=Customer.objects.create())
    command("install")
    marks.drain("default")
    drop_triggers()
    Order.objects.update(state="paid")
    assert not TimeoutMark.objects.exists()
    call_command("migrate", verbosity=0)
    assert show()[ORDER]["state"] == "installed"
    marks.drain("default")
    assert live() == {}
    Order.objects.filter(pk=order.pk).update(state="open")
    marks.drain("default")
    assert len(live()) == 1


def test_migrate_installs_nothing_by_itself_and_marks_nothing_if_nothing_was_dropped(close: Declaration) -> None:
    call_command("migrate", verbosity=0)
    assert statements.tables(connection) == set()
    command("install", CUSTOMER)
    TimeoutMark.objects.all().delete()
    call_command("migrate", verbosity=0)
    assert statements.tables(connection) == {CUSTOMER}
    assert not TimeoutMark.objects.exists()


@on_postgresql
def test_migrate_leaves_disabled_triggers_alone(close: Declaration) -> None:
    command("install")
    execute(f"ALTER TABLE {ORDER} DISABLE TRIGGER ALL")
    call_command("migrate", verbosity=0)
    assert show()[ORDER]["state"] == "disabled"


def test_migrating_back_removes_the_triggers(close: Declaration) -> None:
    command("install")
    nodes = MigrationLoader(connection).graph.nodes
    (migration,) = (each for each in nodes.values() if each.name.endswith("_timeout_marks"))
    ((app, before),) = migration.dependencies
    try:
        call_command("migrate", app, before, verbosity=0)
        Order.objects.create()
    finally:
        call_command("migrate", verbosity=0)
    assert statements.tables(connection) == set()


def test_triggers_follow_a_renamed_table(schema: Schema, declare: Declare) -> None:
    declare(schema.model(), "due_at", topic="parcel.late")
    command("install")
    schema.apply(migrations.RenameModel("Parcel", "Package"))
    declarations.unregister("parcel.late")
    declare(schema.model("package"), "due_at", topic="package.late")
    assert installation.reinstall("default") == ["parcels_package"]
    assert list(TimeoutTrigger.objects.values_list("table_name", flat=True)) == ["parcels_package"]
    assert warnings() == []
    schema.model("package").objects.create(due_at=START)
    marks.drain("default")
    assert list(live()) == ["package:1"]


@pytest.mark.parametrize(
    "operation",
    [
        migrations.AlterField("parcel", "due_at", models.DateTimeField(null=True, db_index=True)),
        migrations.AlterField("parcel", "state", models.TextField(default="open")),
        migrations.RenameField("parcel", "state", "phase"),
        migrations.RemoveField("parcel", "state"),
        migrations.AddField("parcel", "size", models.IntegerField(default=5)),
    ],
    ids=lambda operation: operation.describe(),
)
def test_marks_are_complete_again_after_each_kind_of_migration(
    schema: Schema, declare: Declare, operation: Any
) -> None:
    """Also for changes between the operation and the end of `migrate`."""
    declare(schema.model(), "due_at", topic="parcel.late", while_=Q(state="open"))
    command("install")
    row = schema.model().objects.create(id=7, due_at=START)
    marks.drain("default")
    schema.apply(operation)
    declarations.unregister("parcel.late")
    names = {field.name for field in schema.model()._meta.get_fields()}
    condition = Q(state="open") if "state" in names else Q(phase="open") if "phase" in names else Q(weight=0)
    declare(schema.model(), "due_at", topic="parcel.late", while_=condition)
    schema.model().objects.filter(pk=row.pk).update(due_at=None)
    installation.reinstall("default")
    marks.drain("default")
    assert live() == {}
    schema.model().objects.filter(pk=row.pk).update(due_at=START)
    marks.drain("default")
    assert list(live()) == ["parcel:7"]
