"""The answer of a query of the jobs' own database, copied into the lake: one statement, so of one moment."""

import importlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow
from pyarrow import parquet

from .database import WAIT_SECONDS, Database, DatabaseAway
from .lake import Lake
from .progress import say
from .settings import BadSettings
from .sources import BOUNDED

BATCH = 50_000  # rows
# PostgreSQL's types that Arrow and Spark have too: boolean, bigint, smallint, integer, text, real, double precision,
# char, varchar, date, timestamp, timestamptz. Others are read as texts.
TYPES = (16, 20, 21, 23, 25, 700, 701, 1042, 1043, 1082, 1114, 1184)
# SQLite's.
READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
AWAY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)


def copy(database: Database, sql: str, lake: Lake, folder: str) -> None:
    """Write the answer as Parquet. It only reads. Raises BadSettings: the query is refused; DatabaseAway."""
    say("asking the query")
    batches = _of_sqlite(database, sql) if database.vendor == "sqlite" else _of_postgresql(database, _bare(sql))
    first = next(batches)
    lake.files.create_dir(lake.path(folder), recursive=True)
    path = lake.path(f"{folder}/answer.parquet")
    with lake.files.open_output_stream(path) as out, parquet.ParquetWriter(out, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _bare(sql: str) -> str:
    return sql.strip().rstrip(";")


def _of_postgresql(database: Database, sql: str) -> Iterator[pyarrow.RecordBatch]:
    """First an empty batch, which tells the schema."""
    columns = ", ".join(_described(database, sql))
    dbapi = importlib.import_module("adbc_driver_postgresql.dbapi")
    try:
        with dbapi.connect(database.uri) as connection, connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.adbc_statement.set_options(**BOUNDED["postgresql"])
            cursor.execute(f"SELECT {columns} FROM (\n{sql}\n) AS asked")
            reader = cursor.fetch_record_batch()
            yield pyarrow.RecordBatch.from_pylist([], schema=reader.schema)
            yield from reader
    except dbapi.OperationalError as error:
        raise DatabaseAway(f"{database} does not answer: {error}.") from error
    except dbapi.Error as error:
        raise BadSettings(f"The query was refused: {str(error).splitlines()[0]}") from error


def _described(database: Database, sql: str) -> list[str]:
    """Each column as it is selected. Raises BadSettings: the query is refused, or a name is there twice."""
    import psycopg

    with database.connect() as connection:
        connection.execute("SET TRANSACTION READ ONLY")
        try:
            found = connection.execute(f"SELECT * FROM (\n{sql}\n) AS asked LIMIT 0", prepare=False).description
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
            raise BadSettings(f"The query was refused: {str(error).splitlines()[0]}.") from error
    names = [each.name for each in found]
    _once_each(names)
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    return [
        name if each.type_code in TYPES else f"CAST({name} AS text) AS {name}"
        for name, each in zip(quoted, found, strict=True)
    ]


def _once_each(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadSettings(f"The query's answer has the column {', '.join(twice)} twice: give each its name with AS.")


def _of_sqlite(database: Database, sql: str) -> Iterator[pyarrow.RecordBatch]:
    """All columns as texts: SQLite's have no types."""
    try:
        with closing(sqlite3.connect(database.uri, uri=True, timeout=WAIT_SECONDS)) as connection:
            connection.set_authorizer(_reads)
            cursor = connection.execute(sql)
            names = [each[0] for each in cursor.description or ()]
            _once_each(names)
            schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
            yield pyarrow.RecordBatch.from_pylist([], schema=schema)
            while rows := cursor.fetchmany(BATCH):
                yield pyarrow.RecordBatch.from_pylist([_texts(names, row) for row in rows], schema=schema)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in AWAY:
            raise DatabaseAway(f"{database} does not answer: {error}.") from error
        raise BadSettings(f"The query was refused: {error}.") from error


def _reads(action: int, *_: Any) -> int:
    """A file that is opened read only could still be copied to another (VACUUM INTO) or have one attached."""
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def _texts(names: list[str], row: tuple[Any, ...]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in zip(names, row, strict=True)}
