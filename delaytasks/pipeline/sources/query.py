"""Copy the result of a query on the jobs' own database into the lake. One statement gives a consistent result."""

import importlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow
from pyarrow import parquet

from ..config import BadSettings
from ..spark import full_disk
from ..spark.progress import report_progress
from ..tables.lake import Lake
from .arrow import BATCH_OPTIONS
from .database import WAIT_SECONDS, Database, DatabaseUnavailable
from .relations import finite

BATCH_ROWS = 50_000
REFUSAL = re.compile(r"\bERROR:\s+(?!canceling)(.+)")  # PostgreSQL reports a lost connection as FATAL, or without it
# OIDs of PostgreSQL's types that Arrow and Spark have too: boolean, bigint, smallint, integer, text, real,
# double precision, varchar. Other types but TIME_TYPE_OIDS are read as text, char(n) without its padding.
NATIVE_TYPE_OIDS = (16, 20, 21, 23, 25, 700, 701, 1043)
TIME_TYPE_OIDS = (1082, 1114, 1184)  # date, timestamp, timestamptz
# READ_ACTIONS: SQLite's authorizer actions that a query may use. UNAVAILABLE: error codes of DatabaseUnavailable.
READ_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
UNAVAILABLE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)


def copy(database: Database, sql: str, lake: Lake, folder: str) -> None:
    """Write the result of a query as a Parquet file into the folder. The query cannot change the database.

    Raises DatabaseUnavailable, and BadSettings if the database refuses the query or two columns have the same name.
    """
    report_progress("running the query")
    batches = _query_sqlite(database, sql) if database.vendor == "sqlite" else _query_postgresql(database, sql)
    first = next(batches)
    lake.make_folder(folder)
    path = lake.path(f"{folder}/answer.parquet")
    with lake.files.open_output_stream(path) as out, parquet.ParquetWriter(out, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _query_postgresql(database: Database, sql: str) -> Iterator[pyarrow.RecordBatch]:
    """Yield the result in batches. The first batch is empty, so that there is a schema even if the result is empty."""
    sql = sql.strip().rstrip(";")
    columns = ", ".join(_columns(database, sql))
    dbapi = importlib.import_module("adbc_driver_postgresql.dbapi")
    try:
        with dbapi.connect(database.uri) as connection, connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.adbc_statement.set_options(**BATCH_OPTIONS["postgresql"])
            cursor.execute(f"SELECT {columns} FROM (\n{sql}\n) AS asked")
            reader = cursor.fetch_record_batch()
            yield pyarrow.RecordBatch.from_pylist([], schema=reader.schema)
            yield from reader
    except (dbapi.Error, OSError, pyarrow.ArrowException) as error:  # the last two while rows are read
        refused, lost = REFUSAL.search(str(error)), isinstance(error, dbapi.OperationalError | OSError)
        if full_disk.FULL.search(str(error)) or (lost and not refused):
            raise DatabaseUnavailable(f"{database} does not answer: {error}.") from error
        reason = refused[1] if refused else str(error).splitlines()[0]
        raise BadSettings(f"The query was refused: {reason}.") from error


def _columns(database: Database, sql: str) -> list[str]:
    """Return an SQL expression for each column of the result, with values that Arrow and Spark have.

    Raises BadSettings if the database refuses the query or two columns have the same name.
    """
    import psycopg

    with database.connect() as connection:
        connection.execute("SET TRANSACTION READ ONLY")
        try:
            found = connection.execute(f"SELECT * FROM (\n{sql}\n) AS asked LIMIT 0", prepare=False).description
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
            raise BadSettings(f"The query was refused: {str(error).splitlines()[0]}.") from error
    names = [each.name for each in found]
    _check_unique(names)
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    return [_expression(name, each.type_code) for name, each in zip(quoted, found, strict=True)]


def _expression(name: str, type_oid: int) -> str:
    if type_oid in TIME_TYPE_OIDS:
        return f"{finite(name)} AS {name}"
    return name if type_oid in NATIVE_TYPE_OIDS else f"CAST({name} AS text) AS {name}"


def _check_unique(names: list[str]) -> None:
    lower = [name.lower() for name in names]  # Spark does not distinguish capitals
    duplicates = sorted({name for name in names if lower.count(name.lower()) > 1})
    if duplicates:
        raise BadSettings(f"The query's result has duplicate columns: {', '.join(duplicates)}. Name each with AS.")


def _query_sqlite(database: Database, sql: str) -> Iterator[pyarrow.RecordBatch]:
    """Yield the result in batches, the first empty. All columns are text, as SQLite's columns have no fixed type."""
    try:
        with closing(sqlite3.connect(database.uri, uri=True, timeout=WAIT_SECONDS)) as connection:
            connection.set_authorizer(_authorize)
            cursor = connection.execute(sql)
            names = [each[0] for each in cursor.description or ()]
            _check_unique(names)
            schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
            yield pyarrow.RecordBatch.from_pylist([], schema=schema)
            while rows := cursor.fetchmany(BATCH_ROWS):
                yield pyarrow.RecordBatch.from_pylist([_as_texts(names, row) for row in rows], schema=schema)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in UNAVAILABLE:
            raise DatabaseUnavailable(f"{database} does not answer: {error}.") from error
        raise BadSettings(f"The query was refused: {error}.") from error


def _authorize(action: int, *_: Any) -> int:
    """Allow only reads. A read-only connection could still copy the database (VACUUM INTO) or attach others."""
    return sqlite3.SQLITE_OK if action in READ_ACTIONS else sqlite3.SQLITE_DENY


def _as_texts(names: list[str], row: tuple[Any, ...]) -> dict[str, str | None]:
    return {name: None if value is None else _as_text(value) for name, value in zip(names, row, strict=True)}


def _as_text(value: Any) -> str:
    """Return the text of a value; of bytes as PostgreSQL gives it."""
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
