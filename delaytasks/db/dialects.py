"""The differences between PostgreSQL and SQLite: time, milliseconds, row locks, many rows in one statement.

The SQL of Dialect.now is the time of the statement, not of the transaction, truncated to the millisecond. On PostgreSQL
it uses statement_timestamp(), because clock_timestamp() is volatile and the planner cannot use it with an index. If the
statement has waited for a lock, statement_timestamp() is too early. That is harmless, except for the lease of a job
that is claimed after the wait: see end_and_claim(). A time too late would not be harmless.
"""

import abc
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any, ClassVar

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from .. import clock
from .retries import retry_conflicts

Statement = tuple[str, Sequence[Any]]  # SQL and its parameters
Rows = list[tuple[Any, ...]]

PLANNED_SECONDS = 5  # how long a prepared plan is reused: a plan for a small table is slow after the table has grown

READ_COMMITTED = 2  # psycopg.IsolationLevel
_IDLE = 0  # psycopg.pq.TransactionStatus
_JULIAN_EPOCH = 2440587.5  # SQLite's julianday() of 1970-01-01

_test_clock: Callable[[], int] | None = None


def set_clock(now_ms: int | Callable[[], int] | None) -> None:
    """Use `now_ms`, in ms since 1970, as the database's time in this process; None: the real time. For tests.

    now_ms   a number, or a function that is called for each statement
    """
    global _test_clock
    _test_clock = (lambda: now_ms) if isinstance(now_ms, int) else now_ms


def is_fixed() -> bool:
    """Return whether set_clock() has replaced the real time."""
    return _test_clock is not None


class Dialect(abc.ABC):
    """SQL fragments and the execution of statements on one kind of database."""

    real_now: ClassVar[str]
    real_clock: ClassVar[str]  # as real_now, but the time when it is evaluated, which may be long after
    lock: ClassVar[str]  # waits for locked rows
    skip_locked: ClassVar[str]  # skips locked rows
    greatest: ClassVar[str]
    least: ClassVar[str]
    writes_in_with: ClassVar[bool]  # WITH may write, so one statement can change two tables

    @property
    def now(self) -> str:
        return self.real_now if _test_clock is None else self.literal(_test_clock())

    @property
    def clock(self) -> str:
        return self.real_clock if _test_clock is None else self.now

    @abc.abstractmethod
    def literal(self, ms: int) -> str:
        """Return a time, given in ms since 1970, as a SQL literal."""

    @abc.abstractmethod
    def moment(self, ms: int) -> Any:
        """Return a time, given in ms since 1970, as a query parameter."""

    @abc.abstractmethod
    def plus_ms(self, moment: str, ms: str) -> str:
        """Return the SQL of `moment` plus `ms` milliseconds."""

    @abc.abstractmethod
    def from_ms(self, ms: str) -> str:
        """Return the SQL that converts milliseconds since 1970 to a column's time."""

    @abc.abstractmethod
    def to_ms(self, moment: str) -> str:
        """Return the SQL that converts a column's time to milliseconds since 1970."""

    def as_moment(self, value: str) -> str:
        return value

    def as_json(self, value: str) -> str:
        return value

    def table(
        self, kinds: Sequence[str], rows: Sequence[Sequence[Any]], *, hidden: bool = False
    ) -> tuple[str, list[Any]]:
        """Return the SQL of a query that yields these rows, and its parameters.

        kinds    the PostgreSQL types of the columns
        hidden   True: PostgreSQL does not see the values when it plans, even if there is a single row
        """
        placeholders = "(" + ", ".join(["%s"] * len(kinds)) + ")"
        return "VALUES " + ", ".join([placeholders] * len(rows)), [value for row in rows for value in row]

    def among(self, column: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        """Return the SQL of the condition that the column is one of these ids, and its parameters."""
        return f"{column} IN ({', '.join(['%s'] * len(ids))})", list(ids)

    def for_each(self, numbers: range, query: str) -> list[str]:
        """Return queries that together yield the rows of `query` for each number; {} in `query` is the number."""
        return [query.format(number) for number in numbers]

    def among_results(self, column: str, query: str) -> str:
        """Return the SQL of the condition that the column is one of the few ids that a query finds."""
        return f"{column} IN ({query})"

    def run(
        self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any], meanwhile: Callable[[], None] | None
    ) -> list[tuple[Any, ...]]:
        """Execute the statement and return its rows.

        meanwhile   called while the database executes the statement, if the driver supports that
        """
        with connection.cursor() as c:
            c.execute(sql, params)
            return c.fetchall() if c.description else []

    def run_together(self, connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[Rows]:
        """Execute statements in one transaction and return the rows of each."""
        with transaction.atomic(connection.alias):
            return [self.run(connection, sql, params, None) for sql, params in statements]


class PostgreSQL(Dialect):
    real_now = "date_trunc('milliseconds', statement_timestamp())"
    real_clock = "date_trunc('milliseconds', clock_timestamp())"
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

    def table(
        self, kinds: Sequence[str], rows: Sequence[Sequence[Any]], *, hidden: bool = False
    ) -> tuple[str, list[Any]]:
        """Return a query with one array for each column, as the driver is slow with thousands of placeholders.

        The SQL is the same for any number of rows, except for a single row, so that the planner knows that it is one.
        """
        if len(rows) == 1 and not hidden:
            values = [
                None if value is None else str(value) for value in rows[0]
            ]  # the type of an int depends on its size
            return "SELECT " + ", ".join(f"CAST(%s AS {kind})" for kind in kinds), values
        arrays = ", ".join(f"CAST(%s AS {kind}[])" for kind in kinds)
        columns = zip(*rows, strict=True)
        return f"SELECT * FROM unnest({arrays})", list(map(array, kinds, columns))

    def among(self, column: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        return f"{column} = ANY(CAST(%s AS bigint[]))", [array("bigint", ids)]

    def for_each(self, numbers: range, query: str) -> list[str]:
        """Return one query, which is planned in much less time."""
        series = f"generate_series({numbers[0]}, {numbers[-1]}) AS number"
        return [f"SELECT found.* FROM {series}, LATERAL ({query.format('number')}) AS found"]

    def among_results(self, column: str, query: str) -> str:
        return f"{column} = ANY(ARRAY({query}))"

    def run(
        self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any], meanwhile: Callable[[], None] | None
    ) -> list[tuple[Any, ...]]:
        """Execute the statement. Outside a transaction, repeat it after a conflict with another transaction.

        The statement is prepared only if the settings of the database allow it: see allows_prepared().
        """
        return retry_conflicts(lambda: self._run(connection, sql, params, meanwhile), connection.alias)

    def _run(
        self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any], meanwhile: Callable[[], None] | None
    ) -> list[tuple[Any, ...]]:
        # Only Django's own cursor logs queries and calls execute wrappers. It never prepares statements.
        if connection.queries_logged or connection.execute_wrappers or not allows_prepared(connection.settings_dict):
            return super().run(connection, sql, params, meanwhile)
        connection.validate_thread_sharing()
        connection.close_if_health_check_failed()
        connection.ensure_connection()  # first, because it resets the state that an interrupt has left behind
        if not connection.closed_in_transaction:  # if it was closed, the driver's error below says more
            connection.validate_no_broken_transaction()
        raw: Any = connection.connection
        # Without pipeline mode, execute() waits for the result. If a statement's meanwhile() has called this, the end
        # of an inner block waits.
        waits = not (meanwhile and _supports_pipeline())
        pipeline = nullcontext() if waits and not raw.pgconn.pipeline_status else raw.pipeline()
        own = meanwhile or connection.allow_thread_sharing  # nobody else executes with it before the rows are read
        cursor = _cursor_class()(raw) if own else _kept_cursor(connection)
        with connection.wrap_database_errors:
            with pipeline:
                cursor.execute(_text(sql, int(time.monotonic() / PLANNED_SECONDS)), params)
                if meanwhile:
                    meanwhile()
                    return cursor.fetchall()  # waits for the result; errors are raised here
            return cursor.fetchall() if cursor.pgresult.nfields else []  # cursor.description would be slow

    def run_together(self, connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[Rows]:
        """Execute statements, each of which returns rows, in one transaction and one round trip.

        The server runs several statements in one text as one transaction. Inside a transaction, or if the settings
        have an isolation level, the statements are executed one after the other.
        """
        connection.validate_thread_sharing()
        connection.ensure_connection()
        raw: Any = connection.connection
        is_plain = connection.get_autocommit() and raw.isolation_level is None
        if not is_plain or connection.queries_logged or connection.execute_wrappers:
            return super().run_together(connection, statements)
        text, params = "; ".join(sql for sql, _ in statements), [value for _, values in statements for value in values]
        with connection.wrap_database_errors, _client_cursor_class()(raw) as cursor:
            cursor.execute(text, params)
            found: list[Rows] = [cursor.fetchall()]
            while cursor.nextset():
                found.append(cursor.fetchall())
            return found


def allows_prepared(settings: Mapping[str, Any]) -> bool:
    """Return whether a database's settings allow prepared statements: OPTIONS["prepare_threshold"] is a number.

    Django's default is None, so that connections work behind a pooler in transaction mode, where the next transaction
    may reach another session. Django's own cursors do not prepare even then, unless OPTIONS["server_side_binding"] is
    set.
    """
    return settings.get("OPTIONS", {}).get("prepare_threshold") is not None


def array(kind: str, values: Sequence[Any]) -> str:
    """Return the values as one parameter that PostgreSQL can cast to an array of this type.

    This is faster than the driver, which adapts each value separately.
    """
    if not values:
        return "{}"
    if kind in ("bigint", "int", "smallint"):
        return "{" + ",".join(map(str, values)).replace("None", "NULL") + "}"
    if None in values:
        raise ValueError("A text column of the engine's tables is never NULL.")
    text = "\0".join(map(str, values))
    if text.count("\0") >= len(values):
        raise ValueError("PostgreSQL cannot store a NUL character in a text.")
    return '{"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


class SQLite(Dialect):
    """SQLite, where times are texts in UTC, in the format of Django, so that they compare and sort correctly."""

    real_now = "replace(strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'), '.000000', '')"
    real_clock = real_now
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
        return f"CAST(round((julianday({moment}) - {_JULIAN_EPOCH}) * 86400000) AS INTEGER)"


_DIALECTS: dict[str, Dialect] = {"postgresql": PostgreSQL(), "sqlite": SQLite()}


def get_vendor(vendor: str) -> Dialect:
    """Return the dialect of a vendor, "postgresql" or "sqlite"."""
    return _DIALECTS[vendor]


@functools.cache
def get_dialect(using: str) -> Dialect:
    """Return the dialect of a database alias. Raises NotImplementedError for an unsupported database."""
    vendor = connections[using].vendor
    try:
        return _DIALECTS[vendor]
    except KeyError:
        raise NotImplementedError(f"delaytasks supports PostgreSQL and SQLite; {using!r} is {vendor}.") from None


@functools.cache
def _cursor_class() -> Any:
    from django.db.backends.postgresql.base import ServerBindingCursor  # imports psycopg, which SQLite does not need

    return ServerBindingCursor


def _kept_cursor(connection: Any) -> Any:
    """Return the connection's cursor for the engine's statements. It is kept, because making one takes time.

    If it executes the same text again, the driver also keeps how to convert the parameters and the results.
    """
    cursor = getattr(connection, "_delaytasks_cursor", None)
    if cursor is None or cursor.connection is not connection.connection:
        cursor = connection._delaytasks_cursor = _cursor_class()(connection.connection)
    return cursor


@functools.lru_cache(maxsize=64)
def _text(sql: str, period: int) -> str:
    """Return the SQL as a text that is planned anew in each period; the same object each time."""
    return f"{sql} -- {period}"


@functools.cache
def _client_cursor_class() -> Any:
    from psycopg import ClientCursor  # the server accepts separate parameters only for a single statement

    return ClientCursor


@functools.cache
def _supports_pipeline() -> bool:
    """Return whether the driver's libpq supports pipeline mode: from version 14 on."""
    from psycopg import Pipeline

    return Pipeline.is_supported()


def cursor(using: str) -> CursorWrapper:
    return connections[using].cursor()


def run(
    using: str, sql: str, params: Sequence[Any], meanwhile: Callable[[], None] | None = None
) -> list[tuple[Any, ...]]:
    """Execute a statement of the engine and return its rows.

    meanwhile   called while the database executes the statement, if the driver supports that; must not use the same
                database
    """
    return get_dialect(using).run(connections[using], sql, params, meanwhile)


def run_together(using: str, statements: Sequence[Statement]) -> list[Rows]:
    """Execute statements in a transaction of their own, or inside that of the caller, and return the rows of each.

    On PostgreSQL this is one round trip outside a transaction. Each statement sees what was committed before it began.
    """
    return get_dialect(using).run_together(connections[using], statements)


def lock_name(using: str, name: str) -> None:
    """Lock a name until the transaction ends. Does nothing on SQLite, which has one writer at a time."""
    if connections[using].vendor == "postgresql":
        with cursor(using) as c:
            c.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 5307))", [name])


def wait_at_most(using: str, ms: int) -> None:
    """Limit the wait for each lock to `ms` until the transaction ends. Does nothing on SQLite: it has no row locks."""
    if connections[using].vendor == "postgresql":
        with cursor(using) as c:
            c.execute("SELECT set_config('lock_timeout', %s, true)", [f"{ms}ms"])


@contextmanager
def lock_timeout(using: str, ms: int) -> Iterator[None]:
    """Limit the wait for each lock to `ms` in the block, which must be all of a transaction or savepoint.

    After the block, an outer transaction has its own limit again. Does nothing on SQLite.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        yield
        return
    sql = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
    [(before, _)] = run(using, sql, [f"{ms}ms"])
    yield
    if connection.savepoint_ids and not connection.needs_rollback:  # otherwise the end of the block restores it
        run(using, sql, [before])


@contextmanager
def reads_with(using: str, **settings: str) -> Iterator[None]:
    """Set these settings of PostgreSQL for the block, which only reads. Does nothing on SQLite."""
    if connections[using].vendor != "postgresql":
        yield
        return
    with transaction.atomic(using):
        changes = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        run(using, f"SELECT {changes}", [])
        yield
        transaction.set_rollback(True, using)  # restores the settings of an outer transaction


@functools.cache
def has_check_function(using: str) -> bool:
    """Return whether migration 0039 has made the function that checks deferred constraints. False on SQLite.

    Tables that were created without migrations lack it.
    """
    if connections[using].vendor != "postgresql":
        return False
    return bool(run(using, "SELECT to_regprocedure('delaytasks_check_constraints()') IS NOT NULL", ())[0][0])


def check_constraints(using: str) -> None:
    """Check the deferred constraints of the current transaction now. Raises IntegrityError. Does nothing on SQLite."""
    if connections[using].vendor == "postgresql":
        run(using, "SET CONSTRAINTS ALL IMMEDIATE", ())


def has_begun(using: str) -> bool:
    """Return whether a statement was executed in the current transaction, or may have been. True on SQLite.

    The driver sends BEGIN with the first statement of a transaction.
    """
    connection: Any = connections[using]
    if connection.vendor != "postgresql" or connection.connection is None:
        return True
    outermost = connection.in_atomic_block and connection.commit_on_exit and not connection.savepoint_ids
    return not outermost or bool(connection.connection.pgconn.transaction_status != _IDLE)


@contextmanager
def autocommit(using: str) -> Iterator[None]:
    """Let the one statement in the block commit itself, which saves the round trips of BEGIN and COMMIT.

    For the last statement of an atomic block in which nothing was executed before: see has_begun(). The block still
    runs the on_commit callbacks at its end; the driver then has nothing left to commit.
    """
    raw: Any = connections[using].connection
    raw.autocommit = True
    try:
        yield
    finally:
        if raw.pgconn.transaction_status == _IDLE:  # else the connection is lost
            raw.autocommit = False


def reads_committed(using: str) -> bool:
    """Return whether each statement of a transaction sees what others have committed before it. True on SQLite.

    The server's default is read once for each connection.
    """
    connection: Any = connections[using]
    raw = connection.connection
    if connection.vendor != "postgresql" or raw is None:
        return connection.vendor != "postgresql"
    if raw.isolation_level is not None:  # from OPTIONS; it overrides the server's default
        return raw.isolation_level == READ_COMMITTED
    known_for, default = getattr(connection, "_delaytasks_isolation", (None, ""))
    if known_for is not raw:
        with cursor(using) as c:
            c.execute("SHOW default_transaction_isolation")
            default = c.fetchone()[0]
        connection._delaytasks_isolation = (raw, default)
    return bool(default == "read committed")


def now_ms(using: str) -> float:
    """Return the database's time in milliseconds since 1970, as exact as possible. Used by DatabaseClock."""
    if _test_clock is not None:
        return _test_clock()
    vendor = connections[using].vendor
    with cursor(using) as c:
        if vendor == "postgresql":
            c.execute("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS double precision)")
        else:
            c.execute(f"SELECT {_DIALECTS['sqlite'].to_ms(_DIALECTS['sqlite'].real_now)}", ())
        return float(c.fetchone()[0])


def database_now(using: str) -> datetime:
    """Return the database's time, aware, truncated to the millisecond: the clock that decides what is due."""
    return clock.from_ms(int(now_ms(using)))
