"""Triggers that make the audit log's table append-only, also for plain SQL.

Nothing can be updated. A row can be deleted only if an entry "audit.pruned" exists whose deletes_before is later than
the row's time. Such an entry cannot announce its own deletion (constraint delaytasks_audit_prunes_older).

Not installed in Django's test databases: TransactionTestCase empties all tables after each test.
"""

from typing import Any

from django.db.backends.base.creation import TEST_DATABASE_PREFIX

TABLE = "delaytasks_auditentry"
_ANNOUNCED = "SELECT 1 FROM {table} WHERE action = 'audit.pruned' AND deletes_before > OLD.at"
_MESSAGE = f"{TABLE} is append-only: entries are deleted only by pruning"
NAMES = {
    "postgresql": ("delaytasks_audit_rows", "delaytasks_audit_truncate"),
    "sqlite": ("delaytasks_audit_update", "delaytasks_audit_delete", "delaytasks_audit_replace"),
}

# STABLE: the function sees the rows as they were when the statement began. So one statement may delete the announcing
# entry together with the entries that it announces.
# The schema and a fixed search_path: otherwise a temporary table, or an operator of the caller, could announce entries.
_FUNCTION = f"""
    CREATE OR REPLACE FUNCTION {{schema}}.delaytasks_audit_append_only() RETURNS trigger LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            IF EXISTS ({_ANNOUNCED.format(table=f"{{schema}}.{TABLE}")}) THEN RETURN OLD; END IF;
        END IF;
        RAISE EXCEPTION '{_MESSAGE}' USING ERRCODE = 'integrity_constraint_violation';
    END $$"""
_INSTALL = {
    "postgresql": [
        f"""CREATE OR REPLACE TRIGGER delaytasks_audit_rows BEFORE UPDATE OR DELETE ON {TABLE}
            FOR EACH ROW EXECUTE FUNCTION delaytasks_audit_append_only()""",
        f"""CREATE OR REPLACE TRIGGER delaytasks_audit_truncate BEFORE TRUNCATE ON {TABLE}
            FOR EACH STATEMENT EXECUTE FUNCTION delaytasks_audit_append_only()""",
    ],
    "sqlite": [
        f"""CREATE TRIGGER IF NOT EXISTS delaytasks_audit_update BEFORE UPDATE ON {TABLE}
            BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END""",
        f"""CREATE TRIGGER IF NOT EXISTS delaytasks_audit_delete BEFORE DELETE ON {TABLE}
            WHEN NOT EXISTS ({_ANNOUNCED.format(table=TABLE)}) BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END""",
        # INSERT OR REPLACE deletes the former row without calling the trigger above.
        f"""CREATE TRIGGER IF NOT EXISTS delaytasks_audit_replace BEFORE INSERT ON {TABLE}
            WHEN EXISTS (SELECT 1 FROM {TABLE} WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END""",
    ],
}
_REMOVE = {
    "postgresql": [
        f"DROP TRIGGER IF EXISTS delaytasks_audit_rows ON {TABLE}",
        f"DROP TRIGGER IF EXISTS delaytasks_audit_truncate ON {TABLE}",
        "DROP FUNCTION IF EXISTS delaytasks_audit_append_only()",
    ],
    "sqlite": [f"DROP TRIGGER IF EXISTS {name}" for name in NAMES["sqlite"]],
}


def install(connection: Any) -> None:
    replace_function(connection)
    _execute(connection, _INSTALL)


def replace_function(connection: Any) -> None:
    """Create the function of the triggers on PostgreSQL, or replace it, in the schema of the table."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(%s)", [TABLE])
            (schema,) = cursor.fetchone()
            cursor.execute(_FUNCTION.format(schema=schema))


def remove(connection: Any) -> None:
    _execute(connection, _REMOVE)


def _execute(connection: Any, statements: dict[str, list[str]]) -> None:
    with connection.cursor() as cursor:
        for statement in statements.get(connection.vendor, ()):
            cursor.execute(statement)


def missing(connection: Any) -> list[str]:
    """Return the names of the triggers that the database lacks."""
    catalogue = {
        "postgresql": f"SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass('{TABLE}') AND tgenabled <> 'D'",
        "sqlite": f"SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '{TABLE}'",
    }
    if connection.vendor not in catalogue:
        return []
    with connection.cursor() as cursor:
        cursor.execute(catalogue[connection.vendor])
        found = {name for (name,) in cursor.fetchall()}
    return [name for name in NAMES[connection.vendor] if name not in found]


def is_test_database(connection: Any) -> bool:
    """Return whether Django's test runner has created this database."""
    name, settings = str(connection.settings_dict["NAME"]), connection.settings_dict
    in_memory = connection.vendor == "sqlite" and connection.is_in_memory_db()
    return bool(in_memory or name.startswith(TEST_DATABASE_PREFIX) or name == settings.get("TEST", {}).get("NAME"))
