"""Compare the rows of jobs and events before an archive with those of the tables and the lake after it, by DuckDB."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import duckdb_extension_delta
import pyarrow
from django.db import connection

from delaytasks.pipeline import schemas
from delaytasks.pipeline.tables import archives
from delaytasks.pipeline.tables.lake import Lake

TABLES = {"delaytasks_job": schemas.JOBS.names, "delaytasks_jobevent": schemas.EVENTS.names}
ARCHIVED = {"delaytasks_job": archives.JOBS, "delaytasks_jobevent": archives.EVENTS}


@contextmanager
def kept() -> Iterator[None]:
    """Keep a copy of all rows inside the block, in tables named <table>_before."""
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {table}_before AS SELECT * FROM {table}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"DROP TABLE {table}_before")


def compare(lake: Lake) -> dict[str, tuple[int, int, int]]:
    """Return for each table the number of rows before, of those missing now, and of those that are extra now."""
    (folder,) = duckdb_extension_delta.__path__
    (extension,) = Path(folder).glob("extensions/*/*.duckdb_extension")
    with duckdb.connect() as duck:
        duck.execute(f"LOAD '{extension}'")
        return {table: _compare(duck, lake, table) for table in TABLES}


def _compare(duck: duckdb.DuckDBPyConnection, lake: Lake, table: str) -> tuple[int, int, int]:
    names = ", ".join(f'"{name}"' for name in TABLES[table])
    duck.register("rows_before", _rows(f"{table}_before", TABLES[table]))
    duck.register("rows_left", _rows(table, TABLES[table]))
    before = f"SELECT {names} FROM rows_before"
    after = f"SELECT {names} FROM delta_scan('{lake.path(ARCHIVED[table])}') UNION ALL SELECT {names} FROM rows_left"

    def count(query: str) -> int:
        (found,) = duck.execute(f"SELECT count(*) FROM ({query})").fetchone() or (0,)
        return int(found)

    return count(before), count(f"({before}) EXCEPT ALL ({after})"), count(f"({after}) EXCEPT ALL ({before})")


def _rows(table: str, columns: list[str]) -> pyarrow.Table:
    names = ", ".join("body::text AS body" if name == "body" else f'"{name}"' for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {table}")
        rows = cursor.fetchall()
        cursor.execute(f"SELECT {names} FROM {table.removesuffix('_before')}_before LIMIT 1")
        kinds = pyarrow.table(_columns(columns, cursor.fetchall())).schema
    return pyarrow.table(_columns(columns, rows)) if rows else kinds.empty_table()


def _columns(names: list[str], rows: list[tuple[object, ...]]) -> dict[str, list[object]]:
    return {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
