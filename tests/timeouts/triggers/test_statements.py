"""What the triggers mark: each change of a watched column, however it is made, and after each change of the schema."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, migrations, models, transaction
from django.db.models import F
from django.utils import timezone

from delaytasks.models import TimeoutMark
from delaytasks.timeouts.triggers import statements
from delaytasks.timeouts.triggers.statements import WatchedTable

from .conftest import PARCEL, Schema

pytestmark = pytest.mark.on_both
on_postgresql = pytest.mark.only_on("postgresql")
on_sqlite = pytest.mark.only_on("sqlite")


def take_marks(table: str = "parcels_parcel") -> list[str | None]:
    """Return the marked keys in the order of the changes, and delete the marks."""
    marks = list(TimeoutMark.objects.filter(table_name=table).order_by("id").values_list("row_pk", flat=True))
    TimeoutMark.objects.all().delete()
    return marks


def keys(*rows: Any) -> list[str]:
    return [str(row.pk) for row in rows]


def execute(sql: str, params: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


# Changes


def test_inserts_and_deletes_are_marked(parcels):
    first = parcels.objects.create()
    rows = parcels.objects.bulk_create([parcels(), parcels()])
    execute("INSERT INTO parcels_parcel (id, state, weight) VALUES (77, 'open', 0)")
    assert take_marks() == [*keys(first, *rows), "77"]
    parcels.objects.filter(pk=rows[0].pk).delete()
    execute("DELETE FROM parcels_parcel WHERE id = 77")
    assert take_marks() == [*keys(rows[0]), "77"]


def test_each_way_to_update_a_watched_column_is_marked(parcels):
    first, second = parcels.objects.bulk_create([parcels(due_at=timezone.now()), parcels()])
    take_marks()
    parcels.objects.filter(pk=first.pk).update(state="paid")
    assert take_marks() == keys(first)
    for row in (first, second):
        row.state = "late"
    parcels.objects.bulk_update([first, second], ["state"])
    assert sorted(take_marks()) == sorted(keys(first, second))
    parcels.objects.filter(pk=first.pk).update(due_at=F("due_at") + timedelta(hours=1))
    assert take_marks() == keys(first)
    execute("UPDATE parcels_parcel SET state = 'raw' WHERE id = %s", [first.pk])
    assert take_marks() == keys(first)
    parcels.objects.filter(pk=first.pk).update(due_at=None)
    assert take_marks() == keys(first)
    second.due_at = timezone.now()
    second.save()
    assert take_marks() == keys(second)


def test_other_columns_are_not_marked(parcels):
    row = parcels.objects.create()
    take_marks()
    parcels.objects.update(weight=F("weight") + 1)
    row.save(update_fields=["weight"])
    assert take_marks() == []


@on_postgresql
def test_writing_the_same_value_is_not_marked(parcels):
    parcels.objects.create().save()
    assert len(take_marks()) == 1


def test_a_changed_key_marks_both_rows(parcels):
    row = parcels.objects.create()
    take_marks()
    parcels.objects.filter(pk=row.pk).update(id=row.pk + 100)
    assert take_marks() == [str(row.pk + 100), str(row.pk)]


def test_a_rolled_back_change_leaves_no_mark(parcels):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        parcels.objects.create()
        raise ZeroDivisionError
    assert take_marks() == []


def test_two_changes_of_a_row_are_two_marks(parcels):
    row = parcels.objects.create()
    parcels.objects.filter(pk=row.pk).update(state="paid")
    assert take_marks() == keys(row, row)


@pytest.mark.parametrize("key", [models.UUIDField(primary_key=True), models.CharField(max_length=20, primary_key=True)])
def test_keys_are_marked_as_text_that_their_field_reads(schema: Schema, key):
    schema.apply(migrations.CreateModel("Box", [("code", key), ("state", models.CharField(max_length=5))]))
    box = schema.model("box")
    statements.create(connection, WatchedTable("parcels_box", "code", ("state",)))
    value = "00000000-0000-0000-0000-000000000007" if isinstance(key, models.UUIDField) else "it's 7 %s"
    box.objects.create(pk=value)
    (mark,) = take_marks("parcels_box")
    assert box.objects.get(pk=box._meta.pk.to_python(mark)).pk == key.to_python(value)


def test_names_are_quoted(schema: Schema):
    column = models.CharField(max_length=5, db_column="odd's column")
    options = {"db_table": "it's a table"}
    schema.apply(
        migrations.CreateModel("Odd", [("id", models.AutoField(primary_key=True)), ("state", column)], options)
    )
    table = WatchedTable(options["db_table"], "id", (column.db_column,))
    statements.create(connection, table)
    row = schema.model("odd").objects.create(state="a")
    schema.model("odd").objects.update(state="b")
    assert take_marks(table.name) == keys(row, row)
    assert statements.state(connection, table) == "installed"


# Changes of the schema. `before` are the marks of a change of a watched column until the triggers are installed again.

ALTERATIONS = {
    "AlterField of a watched column's type": (
        migrations.AlterField("parcel", "state", models.TextField(default="open")), PARCEL, {"postgresql": 1},
    ),
    "AlterField of the key's type": (
        migrations.AlterField("parcel", "id", models.IntegerField(primary_key=True)), PARCEL, {"postgresql": 1},
    ),
    "AlterField of another column": (
        migrations.AlterField("parcel", "weight", models.BigIntegerField(default=1)), PARCEL, {"postgresql": 1},
    ),
    "RenameField of a watched column": (
        migrations.RenameField("parcel", "state", "phase"), WatchedTable(PARCEL.name, "id", ("due_at", "phase")),
        {"postgresql": 1, "sqlite": 1},
    ),
    "RemoveField of a watched column": (
        migrations.RemoveField("parcel", "due_at"), WatchedTable(PARCEL.name, "id", ("state",)),
        {"postgresql": 1, "sqlite": 1},
    ),
    "AddField": (
        migrations.AddField("parcel", "size", models.IntegerField(default=5)), PARCEL, {"postgresql": 1},
    ),
    "AddConstraint": (
        migrations.AddConstraint("parcel", models.CheckConstraint(condition=models.Q(weight__gte=0), name="light")),
        PARCEL, {"postgresql": 1},
    ),
    "RenameModel": (
        migrations.RenameModel("Parcel", "Package"), WatchedTable("parcels_package", "id", PARCEL.columns),
        {"postgresql": 1, "sqlite": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALTERATIONS)
def test_a_change_of_the_schema_succeeds_and_breaks_no_write(parcels, schema: Schema, name):
    operation, after, marks = ALTERATIONS[name]
    row = parcels.objects.create(id=7)
    take_marks()
    schema.apply(operation)
    table = schema.model("package" if name == "RenameModel" else "parcel")
    watched = "phase" if "phase" in after.columns else "state"
    table.objects.filter(pk=row.pk).update(**{watched: "paid"})
    found = TimeoutMark.objects.filter(row_pk="7").count()
    assert found == marks.get(connection.vendor, 0)
    if not found:
        assert statements.state(connection, after) == "missing"

    statements.create(connection, after)
    assert statements.state(connection, after) == "installed"
    take_marks(after.name)
    table.objects.filter(pk=row.pk).update(**{watched: "late"})
    table.objects.filter(pk=row.pk).delete()
    assert take_marks(after.name) == ["7", "7"]


@on_postgresql
def test_a_renamed_key_marks_all_rows(parcels, schema: Schema):
    parcels.objects.create()
    take_marks()
    schema.apply(migrations.RenameField("parcel", "id", "number"))
    schema.model().objects.update(state="paid")
    assert take_marks() == [None]


# Rights


@pytest.fixture
def other_role(parcels) -> Any:
    """A role with the rights to read and write parcels only."""
    execute("DROP ROLE IF EXISTS parcel_writer")
    execute("CREATE ROLE parcel_writer")
    execute("GRANT SELECT, INSERT, UPDATE, DELETE ON parcels_parcel TO parcel_writer")
    execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO parcel_writer")
    yield "parcel_writer"
    execute("RESET ROLE; RESET search_path; DROP SCHEMA IF EXISTS parcel_writer CASCADE; DROP OWNED BY parcel_writer")
    execute("DROP ROLE parcel_writer")


@on_postgresql
def test_a_role_without_rights_on_the_marks_can_write(parcels, other_role):
    execute(f"SET ROLE {other_role}")
    row = parcels.objects.create()
    parcels.objects.update(state="paid")
    parcels.objects.filter(pk=row.pk).delete()
    execute("RESET ROLE")
    assert take_marks() == keys(*[row] * 3)


@on_postgresql
def test_a_roles_own_operators_do_not_run_with_the_rights_of_the_triggers(parcels, other_role):
    parcels.objects.create()
    take_marks()
    execute(f"CREATE SCHEMA {other_role} AUTHORIZATION {other_role}")
    execute(f"SET ROLE {other_role}")
    execute(
        f"""CREATE FUNCTION {other_role}.element(jsonb, text) RETURNS jsonb LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'run as %', current_user; END $$"""
    )
    execute(f"CREATE OPERATOR {other_role}.-> (LEFTARG = jsonb, RIGHTARG = text, FUNCTION = {other_role}.element)")
    execute(f"SET search_path = {other_role}, pg_catalog")
    execute("UPDATE public.parcels_parcel SET state = 'paid'")
    execute("RESET ROLE; RESET search_path")
    assert len(take_marks()) == 1


@on_postgresql
def test_changes_without_a_search_path_are_marked(parcels):
    parcels.objects.create()
    take_marks()
    execute("SET search_path = ''")
    execute("UPDATE public.parcels_parcel SET state = 'paid'")
    execute("RESET search_path")
    assert len(take_marks()) == 1


@on_postgresql
def test_the_function_cannot_be_used_by_other_roles(parcels, other_role):
    with connection.cursor() as cursor:
        cursor.execute("SELECT has_function_privilege(%s, 'delaytasks_timeout_mark()', 'EXECUTE')", [other_role])
        assert cursor.fetchone() == (False,)


@on_postgresql
def test_a_change_of_a_partition_is_marked_for_its_table(schema: Schema):
    execute("CREATE TABLE parcels_part (id int, state text) PARTITION BY RANGE (id)")
    execute("CREATE TABLE parcels_part_1 PARTITION OF parcels_part FOR VALUES FROM (0) TO (100)")
    statements.create(connection, WatchedTable("parcels_part", "id", ("state",)))
    execute("INSERT INTO parcels_part VALUES (7, 'open')")
    execute("UPDATE parcels_part_1 SET state = 'paid'")
    assert take_marks("parcels_part") == ["7", "7"]
    assert statements.tables(connection) == {"parcels_part"}


# What they cannot see


@on_postgresql
def test_truncate_and_replicas_are_not_marked(parcels):
    row = parcels.objects.create()
    take_marks()
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = replica")
        parcels.objects.filter(pk=row.pk).update(state="paid")
    execute("TRUNCATE parcels_parcel")
    assert take_marks() == []


# State


def test_the_state_of_triggers(schema: Schema):
    assert statements.state(connection, PARCEL) == "missing"
    statements.create(connection, PARCEL)
    assert statements.state(connection, PARCEL) == "installed"
    assert statements.state(connection, WatchedTable(PARCEL.name, "id", ("due_at",))) == "different"
    assert statements.tables(connection) == {PARCEL.name}
    statements.drop(connection, PARCEL.name)
    statements.drop(connection, PARCEL.name)
    assert statements.state(connection, PARCEL) == "missing"
    assert statements.state(connection, WatchedTable("no_table", "id")) == "missing"
    statements.drop(connection, "no_table")


@on_postgresql
@pytest.mark.parametrize("command", ["DISABLE TRIGGER USER", "ENABLE REPLICA TRIGGER delaytasks_timeout_mark"])
def test_a_disabled_trigger_is_found_and_enabled_again(parcels, command):
    execute(f"ALTER TABLE parcels_parcel {command}")
    assert statements.state(connection, PARCEL) == "disabled"
    statements.create(connection, PARCEL)
    assert statements.state(connection, PARCEL) == "installed"


@on_postgresql
@pytest.mark.parametrize(
    "change",
    [
        "ALTER FUNCTION delaytasks_timeout_mark() SECURITY INVOKER",
        "ALTER FUNCTION delaytasks_timeout_mark() SET search_path = public",
        """CREATE OR REPLACE FUNCTION delaytasks_timeout_mark() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NULL; END'""",
    ],
)
def test_a_changed_function_is_found_and_replaced(parcels, change):
    execute(change)
    assert statements.state(connection, PARCEL) == "different"
    statements.create(connection, PARCEL)
    assert statements.state(connection, PARCEL) == "installed"


def test_all_triggers_are_removed_with_the_table_of_marks(parcels):
    statements.remove_all(connection)
    assert statements.tables(connection) == set()
    parcels.objects.create()
    assert take_marks() == []
