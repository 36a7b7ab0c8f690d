"""What PostgreSQL and SQLite spell differently: the time, milliseconds, row locks, many rows in one statement.

"Now" is the statement's own time, never the transaction's, cut to the millisecond. On
PostgreSQL that is statement_timestamp(): clock_timestamp() is volatile, so the planner could
not use it with an index, and a statement that waited for a lock had better think itself
early than late.
"""

import abc
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, ClassVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from . import clock

PLANNED_SECONDS = 60  # for which PostgreSQL keeps a plan: one made for an empty table must not stay

_fixed_now_ms: int | None = None


def set_clock(now_ms: int | None) -> None:
    """Make every statement of this process see `now_ms` as the database's time; None: the real one. For tests."""
    global _fixed_now_ms
    _fixed_now_ms = now_ms


def fixed() -> bool:
    """Whether set_clock is in force."""
    return _fixed_now_ms is not None


class Dialect(abc.ABC):
    real_now: ClassVar[str]
    lock: ClassVar[str]  # waits for the row
    skip_locked: ClassVar[str]  # passes the row by
    greatest: ClassVar[str]
    least: ClassVar[str]
    writes_in_with: ClassVar[bool]  # WITH may change rows, so that one statement changes two tables

    @property
    def now(self) -> str:
        return self.real_now if _fixed_now_ms is None else self.literal(_fixed_now_ms)

    @abc.abstractmethod
    def literal(self, ms: int) -> str:
        """This instant, spelled out."""

    @abc.abstractmethod
    def moment(self, ms: int) -> Any:
        """A query parameter that is this instant."""

    @abc.abstractmethod
    def plus_ms(self, moment: str, ms: str) -> str:
        """The moment so many milliseconds later."""

    @abc.abstractmethod
    def from_ms(self, ms: str) -> str:
        """Milliseconds since 1970 as a column has its instants."""

    @abc.abstractmethod
    def to_ms(self, moment: str) -> str:
        """A column's instant in milliseconds since 1970."""

    def as_moment(self, value: str) -> str:
        return value

    def as_json(self, value: str) -> str:
        return value

    def table(self, kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
        """A query that gives these rows back, and its parameters. kinds: PostgreSQL's types of the columns."""
        mark = "(" + ", ".join(["%s"] * len(kinds)) + ")"
        return "VALUES " + ", ".join([mark] * len(rows)), [value for row in rows for value in row]

    def among(self, column: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        """A condition: the column is one of these; and its parameters."""
        return f"{column} IN ({', '.join(['%s'] * len(ids))})", list(ids)

    def run(
        self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any], meanwhile: Callable[[], None] | None
    ) -> list[tuple[Any, ...]]:
        """What the statement answers. meanwhile: what may be done while it runs, if the driver can wait later."""
        with connection.cursor() as c:
            c.execute(sql, params)
            return c.fetchall() if c.description else []


class PostgreSQL(Dialect):
    real_now = "date_trunc('milliseconds', statement_timestamp())"
    lock = "FOR UPDATE"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    greatest = "GREATEST"
    least = "LEAST"
    writes_in_with = True

    def literal(self, ms: int) -> str:
        return f"TIMESTAMPTZ '{clock.from_ms(ms).isoformat()}'"

    def moment(self, ms: int) -> Any:
        return clock.from_ms(ms)

    def plus_ms(self, moment: str, ms: str) -> str:
        return f"({moment} + CAST({ms} AS bigint) * interval '1 millisecond')"

    def from_ms(self, ms: str) -> str:
        return self.plus_ms("TIMESTAMPTZ 'epoch'", ms)

    def to_ms(self, moment: str) -> str:
        return f"CAST(extract(epoch FROM {moment}) * 1000 AS bigint)"

    def as_moment(self, value: str) -> str:
        return f"CAST({value} AS timestamptz)"

    def as_json(self, value: str) -> str:
        return f"CAST({value} AS jsonb)"

    def table(self, kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
        """An array for each column: thousands of values, each with a mark of its own, cost the driver as many steps.

        And the text is the same for any number of rows but one, which the planner knows to be one.
        """
        if len(rows) == 1:
            values = [None if value is None else str(value) for value in rows[0]]  # a number's size would be a type
            return "SELECT " + ", ".join(f"CAST(%s AS {kind})" for kind in kinds), values
        arrays = ", ".join(f"CAST(%s AS {kind}[])" for kind in kinds)
        columns = zip(*rows, strict=True)
        return f"SELECT * FROM unnest({arrays})", list(map(_array, kinds, columns))

    def among(self, column: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        return f"{column} = ANY(CAST(%s AS bigint[]))", [_array("bigint", ids)]

    def run(
        self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any], meanwhile: Callable[[], None] | None
    ) -> list[tuple[Any, ...]]:
        """As a prepared statement: to plan it costs more than to do it.

        Not where the project's settings say that a pooler is between: the next statement may reach another session
        there. And not while Django logs or wraps what is executed, which it could not see.
        """
        if connection.queries_logged or connection.execute_wrappers or _is_pooled(connection.settings_dict):
            return super().run(connection, sql, params, meanwhile)
        connection.validate_thread_sharing()
        connection.close_if_health_check_failed()
        connection.ensure_connection()  # which ends what an interrupt left, so it comes first
        if not connection.closed_in_transaction:  # of which the driver says what it is
            connection.validate_no_broken_transaction()
        raw: Any = connection.connection
        before = raw.prepare_threshold
        try:
            raw.prepare_threshold = 1  # the second time: what a connection asks only once is one round trip
            later = raw.pipeline() if meanwhile and _sends_ahead() else nullcontext()  # else execute() waits
            with connection.wrap_database_errors, later, _prepares()(raw) as cursor:
                cursor.execute(f"{sql} -- {int(time.monotonic() / PLANNED_SECONDS)}", params)
                if meanwhile:
                    meanwhile()
                    return cursor.fetchall()  # which waits; before it nothing is known of the answer
                return cursor.fetchall() if cursor.description else []
        finally:
            raw.prepare_threshold = before


def _is_pooled(settings: Mapping[str, Any]) -> bool:
    """Whether the project asks for what a pooler that gives out a session for each transaction needs."""
    declined = settings.get("OPTIONS", {}).get("prepare_threshold", 0) is None
    return declined or bool(settings.get("DISABLE_SERVER_SIDE_CURSORS"))


def _array(kind: str, values: Sequence[Any]) -> str:
    """An array as PostgreSQL reads it, in a few passes over all of it: the driver takes each value by itself."""
    if not values:
        return "{}"
    if kind in ("bigint", "int", "smallint"):
        return "{" + ",".join(map(str, values)).replace("None", "NULL") + "}"
    if None in values:
        raise ValueError("A text in a table of the engine's is never NULL.")
    text = "\0".join(map(str, values))
    if text.count("\0") >= len(values):
        raise ValueError("PostgreSQL keeps no NUL in a text.")
    return '{"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


class SQLite(Dialect):
    """Times are text there: UTC, exactly as Django writes them, so that they compare and sort as text."""

    real_now = "replace(strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'), '.000000', '')"
    lock = ""
    skip_locked = ""
    greatest = "max"
    least = "min"
    writes_in_with = False

    def literal(self, ms: int) -> str:
        return f"'{self.moment(ms)}'"

    def moment(self, ms: int) -> Any:
        return str(clock.from_ms(ms).replace(tzinfo=None))

    def plus_ms(self, moment: str, ms: str) -> str:
        later = f"strftime('%%Y-%%m-%%d %%H:%%M:%%f000', {moment}, (({ms}) / 1000.0) || ' seconds')"
        return f"replace({later}, '.000000', '')"

    def from_ms(self, ms: str) -> str:
        moment = f"strftime('%%Y-%%m-%%d %%H:%%M:%%f000', ({ms}) / 1000.0, 'unixepoch')"
        return f"replace({moment}, '.000000', '')"

    def to_ms(self, moment: str) -> str:
        seconds, fraction = f"strftime('%%s', {moment})", f"substr(strftime('%%f', {moment}), 4)"
        return f"(CAST({seconds} AS INTEGER) * 1000 + CAST({fraction} AS INTEGER))"


_DIALECTS: dict[str, Dialect] = {"postgresql": PostgreSQL(), "sqlite": SQLite()}


@functools.cache
def of(using: str) -> Dialect:
    """The dialect of a database alias. Raises NotImplementedError for a vendor that the engine does not speak."""
    vendor = connections[using].vendor
    try:
        return _DIALECTS[vendor]
    except KeyError:
        raise NotImplementedError(f"delaytasks runs on PostgreSQL and SQLite; {using!r} is {vendor}.") from None


@functools.cache
def _prepares() -> Any:
    from django.db.backends.postgresql.base import ServerBindingCursor  # imports psycopg, which SQLite does not need

    return ServerBindingCursor


@functools.cache
def _sends_ahead() -> bool:
    """Whether the driver's libpq can send a statement and be asked for its answer later: from 14 on."""
    from psycopg import Pipeline

    return Pipeline.is_supported()


def cursor(using: str) -> CursorWrapper:
    return connections[using].cursor()


def run(
    using: str, sql: str, params: Sequence[Any], meanwhile: Callable[[], None] | None = None
) -> list[tuple[Any, ...]]:
    """The rows that a statement of the engine answers.

    meanwhile   something to do while the database is at it; it must not use the same database, and may not be called
    """
    return of(using).run(connections[using], sql, params, meanwhile)


def lock_name(using: str, name: str) -> None:
    """Make whoever else asks for the same name wait until this transaction ends. SQLite's one writer does by itself."""
    if connections[using].vendor == "postgresql":
        with cursor(using) as c:
            c.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 5307))", [name])


def wait_at_most(using: str, ms: int) -> None:
    """Until this transaction ends, whoever locks a row is waited for no longer. SQLite's one writer locks no rows."""
    if connections[using].vendor == "postgresql":
        with cursor(using) as c:
            c.execute("SELECT set_config('lock_timeout', %s, true)", [f"{ms}ms"])


def now_ms(using: str) -> float:
    """The database's time in milliseconds since 1970, as exact as it gets: what a DatabaseClock learns from."""
    if _fixed_now_ms is not None:
        return _fixed_now_ms
    vendor = connections[using].vendor
    with cursor(using) as c:
        if vendor == "postgresql":
            c.execute("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS double precision)")
        else:
            c.execute(f"SELECT {_DIALECTS['sqlite'].to_ms(_DIALECTS['sqlite'].real_now)}", ())
        return float(c.fetchone()[0])


def database_now(using: str) -> datetime:
    """The database's time, aware, cut to the millisecond: the clock that decides what is ready."""
    return clock.from_ms(int(now_ms(using)))
