"""Install, remove and compare the triggers of the watched tables of a database."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import Count

from ...db import dialects
from ...exceptions import BadInput
from ...models import TimeoutMark, TimeoutTrigger
from . import statements
from .statements import State, WatchedTable
from .watched import watched

LOCK_TIMEOUT_SECONDS = 10  # CREATE TRIGGER waits for the writers of its table, and later writers wait for it


class TableReport(NamedTuple):
    """The state of a table's triggers.

    columns   the watched columns; empty: no declaration depends on the table
    wanted    True: the triggers were installed and not removed by the command
    marks     the number of changes that a worker still has to process
    """

    table_name: str
    columns: tuple[str, ...]
    state: State
    wanted: bool
    marks: int

    @property
    def problem(self) -> str:
        """The problem with the triggers, or ""."""
        if not self.columns:
            return "no declared timeout depends on the table"
        if self.state == "missing" and not self.wanted:
            return ""
        return {"missing": "they are missing", "different": "their SQL is not up to date",
                "disabled": "they are disabled", "installed": ""}[self.state]  # fmt: skip

    @property
    def remedy(self) -> str:
        """The command that solves the problem."""
        return f"manage.py delaytasks timeouts triggers {'install' if self.columns else 'remove'} {self.table_name}"


def report(using: str) -> list[TableReport]:
    """Return a report for each table that is watched, or that has triggers. [] if the database cannot have any."""
    connection = connections[using]
    if not _is_migrated(connection):
        return []
    known, wanted = watched(using), _wanted(using)
    counts = TimeoutMark.objects.using(using).values_list("table_name").annotate(count=Count("pk"))
    marks = dict(counts.values_list("table_name", "count"))
    return [
        TableReport(
            name,
            (known[name].table.key, *known[name].table.columns) if name in known else (),
            statements.state(connection, known[name].table if name in known else WatchedTable(name, "")),
            name in wanted,
            marks.get(name, 0),
        )
        for name in sorted({*known, *wanted, *statements.tables(connection)})
    ]


def install(using: str, names: Iterable[str] = ()) -> list[str]:
    """Install the triggers of these tables, by default of all watched ones, and mark all their rows. Return the names.

    Raises BadInput for a table that no declared timeout depends on, and for a database without triggers.
    """
    connection, known = _connection(using), watched(using)
    for name in names:
        if name not in known:
            raise BadInput(f"No declared timeout depends on the table {name!r}. Watched are: {', '.join(known)}.")
    chosen = sorted(set(names) or known)
    for name in chosen:
        _create(connection, known[name].table)
    return chosen


def _create(connection: Any, table: WatchedTable) -> None:
    using = connection.alias
    with transaction.atomic(using):
        dialects.wait_at_most(using, LOCK_TIMEOUT_SECONDS * 1000)
        statements.create(connection, table)
        TimeoutTrigger.objects.using(using).get_or_create(table_name=table.name)
        TimeoutMark.objects.using(using).create(table_name=table.name)  # all rows: earlier changes were not marked


def remove(using: str, names: Iterable[str] = ()) -> list[str]:
    """Remove the triggers and the marks of these tables, by default of all tables. Return the names."""
    connection = _connection(using)
    present = statements.tables(connection) | _wanted(using)
    chosen = sorted(present.intersection(names) if names else present)
    for name in chosen:
        _forget(connection, name)
    return chosen


def _forget(connection: Any, name: str) -> None:
    with transaction.atomic(connection.alias):
        dialects.wait_at_most(connection.alias, LOCK_TIMEOUT_SECONDS * 1000)
        statements.drop(connection, name)
        TimeoutTrigger.objects.using(connection.alias).filter(table_name=name).delete()
        TimeoutMark.objects.using(connection.alias).filter(table_name=name).delete()


def reinstall(using: str, **_: object) -> list[str]:
    """Install again the triggers that migrations have dropped or made outdated, and mark all rows of their tables.

    Return the names of the tables. Triggers that somebody has disabled stay as they are: a system check reports them.
    """
    connection = connections[using]
    if not _is_migrated(connection):
        return []
    wanted, present, known = _wanted(using), statements.tables(connection), watched(using)
    for name in wanted - set(known) - set(connection.introspection.table_names()):
        _forget(connection, name)  # the table was renamed or dropped
    outdated = [
        name
        for name in sorted(wanted | present)
        if name in known and statements.state(connection, known[name].table) in ("missing", "different")
    ]
    for name in outdated:
        _create(connection, known[name].table)
    return outdated


def problems(using: str) -> Iterator[TableReport]:
    """Yield the tables whose triggers are not as they should be."""
    return (each for each in report(using) if each.problem)


def _connection(using: str) -> Any:
    connection = connections[using]
    if not statements.supports(connection):
        raise BadInput(f"The database {using!r} is {connection.vendor}: triggers need PostgreSQL or SQLite.")
    return connection


def _is_migrated(connection: Any) -> bool:
    tables = connection.introspection.table_names() if statements.supports(connection) else []
    return statements.MARKS in tables and TimeoutTrigger._meta.db_table in tables


def _wanted(using: str) -> set[str]:
    return set(TimeoutTrigger.objects.using(using).values_list("table_name", flat=True))
