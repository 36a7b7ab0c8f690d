"""SQL of the triggers that append a mark (table, key) when a row of a watched table changes.

A trigger runs inside the statements of the site and of other programs, so it must not make them fail, whatever a
migration has done to the table. PostgreSQL: neither the trigger nor its function depends on a column; the function
reads the row as JSON. SQLite: a column that is named in OF can be dropped or renamed, one that is named in WHEN cannot
be dropped.
"""

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["installed", "missing", "different", "disabled"]

MARKS = "delaytasks_timeoutmark"
NAME = "delaytasks_timeout_mark"  # PostgreSQL: the trigger of each table, and the function of all of them
PREFIX = "delaytasks_timeout_"  # SQLite: the beginning of the names of a table's three triggers
_ROW_INSERT_UPDATE_DELETE = 1 | 4 | 8 | 16  # pg_trigger.tgtype of AFTER INSERT OR UPDATE OR DELETE ... FOR EACH ROW

# TG_ARGV: the table, the key's column, the other watched columns. The table's name at the time of the installation:
# TG_TABLE_NAME would be the name of a partition.
# A fixed search_path: otherwise a caller's own operators would run with the rights of this function's owner.
# `new_row -> watched IS NULL`: the column was dropped or renamed (an SQL NULL is a JSON null). Then each change is
# marked until the trigger is installed again. Without the key's column, a mark has no key and stands for all rows.
_FUNCTION_BODY = """
DECLARE
    old_row jsonb;
    new_row jsonb;
    watched text;
    changed boolean := TG_OP <> 'UPDATE';
BEGIN
    IF TG_OP <> 'INSERT' THEN old_row := to_jsonb(OLD); END IF;
    IF TG_OP <> 'DELETE' THEN new_row := to_jsonb(NEW); END IF;
    IF NOT changed THEN
        FOREACH watched IN ARRAY TG_ARGV[1:] LOOP
            changed := new_row -> watched IS NULL OR new_row -> watched IS DISTINCT FROM old_row -> watched;
            EXIT WHEN changed;
        END LOOP;
    END IF;
    IF changed THEN
        INSERT INTO {marks} (table_name, row_pk) VALUES (TG_ARGV[0], COALESCE(new_row, old_row) ->> TG_ARGV[1]);
        IF TG_OP = 'UPDATE' AND new_row -> TG_ARGV[1] IS DISTINCT FROM old_row -> TG_ARGV[1] THEN
            INSERT INTO {marks} (table_name, row_pk) VALUES (TG_ARGV[0], old_row ->> TG_ARGV[1]);
        END IF;
    END IF;
    RETURN NULL;
END"""

_FOUND = {
    "postgresql": f"""
        SELECT t.tgname, t.tgenabled, t.tgtype, t.tgargs, p.prosrc, p.prosecdef, p.proconfig
        FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = to_regclass(%s) AND t.tgname = '{NAME}'""",
    "sqlite": f"""
        SELECT name, sql FROM sqlite_master
        WHERE type = 'trigger' AND tbl_name = %s AND substr(name, 1, {len(PREFIX)}) = '{PREFIX}'""",
}
_TABLES = {
    "postgresql": f"""
        SELECT DISTINCT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE t.tgname = '{NAME}' AND t.tgparentid = 0""",  # not the triggers of partitions
    "sqlite": f"""
        SELECT DISTINCT tbl_name FROM sqlite_master
        WHERE type = 'trigger' AND substr(name, 1, {len(PREFIX)}) = '{PREFIX}'""",
}


@dataclass(frozen=True)
class WatchedTable:
    """A table and the columns whose changes are marked.

    key       the column of the primary key
    columns   the other watched columns, sorted
    """

    name: str
    key: str
    columns: tuple[str, ...] = ()


def supports(connection: Any) -> bool:
    """Return whether this module has triggers for this kind of database."""
    return connection.vendor in _FOUND


def definitions(connection: Any, table: WatchedTable) -> list[str]:
    """Return the SQL that installs the triggers of a table which has none."""
    return list(_definitions(connection, table).values())


def _definitions(connection: Any, table: WatchedTable) -> dict[str, str]:
    if connection.vendor == "postgresql":
        return _postgresql(connection, table)
    return _sqlite(connection, table)


def _postgresql(connection: Any, table: WatchedTable) -> dict[str, str]:
    schema = _quoted_schema(connection)
    function, body = f"{schema}.{NAME}()", _body(connection)
    arguments = ", ".join(map(_literal, _arguments(table)))
    return {
        "function": f"CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        f"SET search_path = pg_catalog, pg_temp AS $delaytasks${body}$delaytasks$",
        "rights": f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC",
        NAME: f"CREATE TRIGGER {NAME} AFTER INSERT OR UPDATE OR DELETE ON {connection.ops.quote_name(table.name)} "
        f"FOR EACH ROW EXECUTE FUNCTION {schema}.{NAME}({arguments})",
    }


def _arguments(table: WatchedTable) -> list[str]:
    return [table.name, table.key, *table.columns]


def _body(connection: Any) -> str:
    return _FUNCTION_BODY.format(marks=f"{_quoted_schema(connection)}.{MARKS}")


def _quoted_schema(connection: Any) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(%s)", [MARKS])
        (schema,) = cursor.fetchone()
    return str(schema)


def _sqlite(connection: Any, table: WatchedTable) -> dict[str, str]:
    """Return a statement for each trigger. An UPDATE marks the row even if it does not change a value."""
    quote = connection.ops.quote_name
    on, key = quote(table.name), quote(table.key)
    watched = ", ".join(map(quote, (table.key, *table.columns)))

    def append(row: str, condition: str = "") -> str:
        values = f"SELECT {_literal(table.name)}, CAST({row}.{key} AS TEXT)"
        return f"INSERT INTO {quote(MARKS)} (table_name, row_pk) {values}{condition};"

    moved = append("OLD", f" WHERE OLD.{key} IS NOT NEW.{key}")
    events = {
        "insert": ("INSERT", append("NEW")),
        "update": (f"UPDATE OF {watched}", f"{append('NEW')} {moved}"),
        "delete": ("DELETE", append("OLD")),
    }
    names = {event: f"{PREFIX}{event}_{table.name}" for event in events}
    return {
        names[event]: f"CREATE TRIGGER {quote(names[event])} AFTER {head} ON {on} BEGIN {body} END"
        for event, (head, body) in events.items()
    }


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def create(connection: Any, table: WatchedTable) -> None:
    """Install the triggers of a table, or replace them. On PostgreSQL this waits until no transaction writes to it."""
    drop(connection, table.name)
    _execute(connection, definitions(connection, table))


def drop(connection: Any, table_name: str) -> None:
    """Remove the triggers of a table. Without triggers, or without the table, nothing happens."""
    quote = connection.ops.quote_name
    if not exists(connection, table_name):
        return
    if connection.vendor == "postgresql":
        _execute(connection, [f"DROP TRIGGER IF EXISTS {NAME} ON {quote(table_name)}"])
    else:
        _execute(connection, [f"DROP TRIGGER {quote(row[0])}" for row in _find(connection, table_name)])


def remove_all(connection: Any) -> None:
    """Remove the triggers of all tables, and their function."""
    if connection.vendor == "postgresql":
        _execute(connection, [f"DROP FUNCTION IF EXISTS {NAME}() CASCADE"])
    elif connection.vendor == "sqlite":
        for table_name in tables(connection):
            drop(connection, table_name)


def exists(connection: Any, table_name: str) -> bool:
    return table_name in connection.introspection.table_names()


def tables(connection: Any) -> set[str]:
    """Return the names of the tables that have triggers, including outdated ones."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLES[connection.vendor])
        return {name for (name,) in cursor.fetchall()}


def state(connection: Any, table: WatchedTable) -> State:
    """Compare the triggers of a table with those that create() would install."""
    found = _find(connection, table.name)
    if not found:
        return "missing"
    if connection.vendor == "sqlite":
        return "installed" if dict(found) == _sqlite(connection, table) else "different"
    ((_name, enabled, kind, arguments, body, definer, options),) = found
    if enabled not in ("O", "A"):
        return "disabled"
    expected = (_ROW_INSERT_UPDATE_DELETE, _arguments(table), _body(connection), True)
    same = (kind, _split(arguments), body, definer) == expected and options == ["search_path=pg_catalog, pg_temp"]
    return "installed" if same else "different"


def _find(connection: Any, table_name: str) -> list[tuple[Any, ...]]:
    name = connection.ops.quote_name(table_name) if connection.vendor == "postgresql" else table_name
    with connection.cursor() as cursor:
        cursor.execute(_FOUND[connection.vendor], [name])
        return list(cursor.fetchall())


def _split(arguments: Any) -> list[str]:
    """Split pg_trigger.tgargs into the trigger's arguments: each ends with a zero byte."""
    return [each.decode() for each in bytes(arguments).split(b"\0")[:-1]]


def _execute(connection: Any, sql: list[str]) -> None:
    with connection.cursor() as cursor:
        for statement in sql:
            cursor.execute(statement)
