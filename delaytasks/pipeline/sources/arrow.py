"""Read the operational tables into Spark: id ranges in parallel, as Arrow batches, all from one snapshot.

The tables are read through ADBC drivers, which are as fast as JDBC and need no jar. Filters are pushed down to the
database. The caller names the columns, because Spark does not push column pruning down to a Python data source.
"""

import contextlib
import importlib
import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import DateType, DecimalType, DoubleType, StringType, StructType, TimestampType

from . import pushdown
from .database import SERVER, Database, DatabaseUnavailable
from .relations import RELATIONS, Relation, table_relation
from .snapshot import Snapshot, enter_statements

if TYPE_CHECKING:
    import pyarrow

NAME = "delaytasks"
RANGE_ROWS = 250_000  # ids in a range; small, so that a large table has more ranges than there are cores
MAX_RANGES = 512
NULL_TEXT = "\0"  # represents null in text columns from SQLite's driver; no stored text contains it
TEXT_TYPES = (StringType, TimestampType, DateType, DecimalType, DoubleType)  # types that SQLite returns as text
BATCH_OPTIONS = {  # bound the size of an Arrow batch, and so the memory
    "postgresql": {"adbc.postgresql.batch_size_hint_bytes": 8 << 20},
    "sqlite": {"adbc.sqlite.query.batch_rows": 16_384},
}


class BadValue(ValueError):
    """A value of a column cannot be read as the column's type. The message begins with the name of the column."""


def read(
    spark: SparkSession, snapshot: Snapshot, name: str, columns: list[str] | None = None, *, rows: int = RANGE_ROWS
) -> DataFrame:
    """Return a frame of a relation in the snapshot; of a snapshot without a name, in the server that is reached now.

    name      key of relations.RELATIONS
    columns   None: all columns
    rows      number of ids in a range
    """
    schema = RELATIONS[name].select(columns)
    options = snapshot.database.as_options() | {"relation": name, "snapshot": snapshot.name, "rows": str(rows)}
    if not snapshot.name:
        options["server"] = json.dumps(snapshot.database.server() or [])
    return spark.read.format(NAME).schema(schema).options(**options).load()


def read_table(spark: SparkSession, snapshot: Snapshot, table: str, schema: StructType) -> DataFrame:
    """Return a frame of any table with an integer `id`, in the snapshot. schema: the columns to read."""
    options = snapshot.database.as_options() | {"table": table, "snapshot": snapshot.name}
    return spark.read.format(NAME).schema(schema).options(**options).load()


def register(spark: SparkSession) -> None:
    spark.dataSource.register(TableSource)


class TableSource(DataSource):
    """Data source of `spark.read.format("delaytasks")`.

    Options: Database.as_options(), `relation` or `table`, `snapshot` (its name), `rows` (number of ids in a range), and
    `server` (JSON of Database.server(), without a snapshot: executors that reach another server must not read it).
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return RELATIONS[self.options["relation"]].columns

    def reader(self, schema: StructType) -> "TableReader":
        table = self.options.get("table")
        database = Database.from_options(self.options)
        relation = table_relation(table, schema, database.vendor) if table else RELATIONS[self.options["relation"]]
        return TableReader(
            database, relation, schema,
            self.options.get("snapshot", ""), int(self.options.get("rows", RANGE_ROWS)),
            tuple(json.loads(self.options.get("server", "[]"))),
        )  # fmt: skip

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader that streams events. Options: `after` (read greater ids), `most` (events in a batch)."""
        from .events import EventReader  # not at the top, because events.py imports this module

        return EventReader(self.reader(schema), int(self.options["after"]), int(self.options["most"]))


@dataclass
class IdRange(InputPartition):
    """Ids from `low` (included) to `high` (excluded)."""

    low: int
    high: int


class TableReader(DataSourceReader):
    def __init__(
        self, database: Database, relation: Relation, schema: StructType, snapshot: str, rows: int,
        server: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.database, self.relation, self.columns = database, relation, schema
        self.snapshot, self.rows, self.server = snapshot, rows, server
        self.conditions: list[str] = []
        self.id_conditions: list[str] = []  # those of the conditions that limit the ids, and so the ranges

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Keep the filters that the database can apply. Yield the others, which Spark applies."""
        for each in filters:
            condition = pushdown.condition(each, self.relation, self.database.vendor)
            if condition is None:
                yield each
                continue
            self.conditions.append(condition)
            if each.attribute == (self.relation.key,):  # type: ignore[attr-defined]
                self.id_conditions.append(pushdown.condition(each, self.relation, self.database.vendor) or "")

    def partitions(self) -> Sequence[IdRange]:
        sql = self.relation.bounds + (f" WHERE {' AND '.join(self.id_conditions)}" if self.id_conditions else "")
        with self._cursor() as cursor:
            cursor.execute(sql)
            low, high = cursor.fetchone()
        if low is None:
            return [IdRange(0, 0)]  # empty: without any partition, Spark would read a default one without a range
        step = max(self.rows, -(-(high - low + 1) // MAX_RANGES))
        return [IdRange(start, min(start + step, high + 1)) for start in range(low, high + 1, step)]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        assert isinstance(partition, IdRange)
        limits = [f"{each} >= {partition.low} AND {each} < {partition.high}" for each in self.relation.ranges]
        columns = ", ".join(self._select_expression(field.name) for field in self.columns)
        with self._cursor() as cursor:
            where = " AND ".join([*limits, *self.conditions])
            cursor.execute(f"SELECT {columns} FROM {self.relation.source} WHERE {where}")
            target = _arrow_schema(self.columns)
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    yield _cast_batch(batch, target)

    def _select_expression(self, name: str) -> str:
        """Return an SQL expression for a column whose values the driver can read.

        PostgreSQL's driver cannot read jsonb. SQLite's driver infers a column's type from its first rows, so a text
        column must not contain null: NULL_TEXT replaces null, and _cast_column() turns it back into null.
        """
        sql, kind = self.relation.sql(name), self.columns[name].dataType
        if self.database.vendor == "postgresql":
            return f"CAST({sql} AS text)" if name == "body" else sql
        return f"coalesce({sql}, char(0))" if isinstance(kind, TEXT_TYPES) else sql

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[Any]:
        """Yield a cursor in a transaction that sees the snapshot. Raises DatabaseUnavailable on another server."""
        dbapi = importlib.import_module(f"adbc_driver_{self.database.vendor}.dbapi")
        options = BATCH_OPTIONS[self.database.vendor]
        with dbapi.connect(self.database.uri) as connection, connection.cursor() as cursor:
            for each in enter_statements(self.snapshot):
                cursor.execute(each)
            if self.database.vendor == "postgresql":
                # To compile the query for each range would take longer than it saves. Hidden rows must be an error.
                cursor.execute("SELECT set_config('jit', 'off', false), set_config('row_security', 'off', false)")
                cursor.fetchone()
            if self.server:
                cursor.execute(SERVER)
                if tuple(cursor.fetchone()) != self.server:
                    raise DatabaseUnavailable(
                        f"{socket.gethostname()} reaches another server as {self.database}, or it was restarted."
                    )
            cursor.adbc_statement.set_options(**options)
            yield cursor


def _arrow_schema(schema: StructType) -> "pyarrow.Schema":
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _cast_batch(batch: "pyarrow.RecordBatch", target: "pyarrow.Schema") -> "pyarrow.RecordBatch":
    """Return the batch with its columns cast to the types of the target schema, which Spark expects."""
    import pyarrow

    columns = []
    for values, field in zip(batch.columns, target, strict=True):
        try:
            columns.append(_cast_column(values, field))
        except pyarrow.ArrowInvalid as error:
            raise BadValue(f"{field.name}: {error}") from error
    return pyarrow.RecordBatch.from_arrays(columns, schema=target)


def _cast_column(values: Any, field: Any) -> Any:
    """Cast the values to the field's type, and NULL_TEXT to null. Times from SQLite are UTC texts."""
    import pyarrow
    from pyarrow import compute, types

    if types.is_string(values.type) and (field.nullable or types.is_timestamp(field.type)):
        values = compute.if_else(compute.equal(values, NULL_TEXT), pyarrow.scalar(None, values.type), values)
    if values.type == field.type:
        return values
    if types.is_timestamp(field.type) and types.is_string(values.type):
        return compute.assume_timezone(values.cast(pyarrow.timestamp(field.type.unit)), "UTC")
    return values.cast(field.type)
