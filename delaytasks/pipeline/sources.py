"""Reads the operational tables into Spark: ranges of ids in parallel, as Arrow batches, all of one snapshot.

Without a jar: ADBC drivers read as fast as JDBC does. What a filter says is asked of the database; columns are
chosen by name, as Spark tells a Python data source nothing of them.
"""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import DateType, DecimalType, DoubleType, StringType, StructType, TimestampType

from . import jdbc, pushdown
from .database import Database
from .relations import RELATIONS, Relation, of_table
from .snapshot import Snapshot, entering

if TYPE_CHECKING:
    import pyarrow

NAME = "delaytasks"
RANGE_ROWS = 250_000  # ids of one range; more ranges than cores, so that an uneven one holds up nobody
MOST_RANGES = 512
NO_TEXT = "\0"  # what SQLite's driver gives in the place of a null among texts; no text of anybody's
AS_TEXT = (StringType, TimestampType, DateType, DecimalType, DoubleType)  # how SQLite gives them
BOUNDED = {  # an Arrow batch: memory does not grow with the table
    "postgresql": {"adbc.postgresql.batch_size_hint_bytes": 8 << 20},
    "sqlite": {"adbc.sqlite.query.batch_rows": 16_384},
}


def read(
    spark: SparkSession, snapshot: Snapshot, name: str, columns: list[str] | None = None, *, rows: int = RANGE_ROWS
) -> DataFrame:
    """What the snapshot has of one of relations.RELATIONS. rows: ids of one range."""
    schema = RELATIONS[name].chosen(columns)
    if snapshot.database.jdbc:
        return jdbc.read(spark, snapshot, RELATIONS[name], schema, rows, MOST_RANGES)
    about = snapshot.database.as_options() | {"relation": name, "snapshot": snapshot.name, "rows": str(rows)}
    return spark.read.format(NAME).schema(schema).options(**about).load()


def read_table(spark: SparkSession, snapshot: Snapshot, table: str, schema: StructType) -> DataFrame:
    """The same of any table with a whole-number `id`."""
    if snapshot.database.jdbc:
        return jdbc.read(spark, snapshot, of_table(table, schema), schema, RANGE_ROWS, MOST_RANGES)
    about = snapshot.database.as_options() | {"table": table, "snapshot": snapshot.name}
    return spark.read.format(NAME).schema(schema).options(**about).load()


def register(spark: SparkSession) -> None:
    spark.dataSource.register(TableSource)


class TableSource(DataSource):
    """`spark.read.format("delaytasks")`. Options: the database's, `relation` or `table`, `snapshot`, `rows`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return RELATIONS[self.options["relation"]].columns

    def reader(self, schema: StructType) -> "TableReader":
        table = self.options.get("table")
        relation = of_table(table, schema) if table else RELATIONS[self.options["relation"]]
        return TableReader(
            Database.from_options(self.options), relation, schema,
            self.options.get("snapshot", ""), int(self.options.get("rows", RANGE_ROWS)),
        )  # fmt: skip

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of `events` alone. Options: `after`, the id to begin after, and `most`, how many events make a batch."""
        from .following import EventReader  # which reads with what is here

        return EventReader(self.reader(schema), int(self.options["after"]), int(self.options["most"]))


@dataclass
class IdRange(InputPartition):
    """Ids from `low` up to, not including, `high`."""

    low: int
    high: int


class TableReader(DataSourceReader):
    def __init__(self, database: Database, relation: Relation, schema: StructType, snapshot: str, rows: int) -> None:
        self.database, self.relation, self.columns = database, relation, schema
        self.snapshot, self.rows = snapshot, rows
        self.conditions: list[str] = []
        self.ends: list[str] = []  # those of the conditions that limit the ids

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take over what the database can decide; yield the others, which Spark then applies itself."""
        for each in filters:
            condition = pushdown.condition(each, self.relation, self.database.vendor)
            if condition is None:
                yield each
                continue
            self.conditions.append(condition)
            if each.attribute == (self.relation.key,):  # type: ignore[attr-defined]
                self.ends.append(pushdown.condition(each, self.relation, self.database.vendor) or "")

    def partitions(self) -> Sequence[IdRange]:
        sql = self.relation.ends + (f" WHERE {' AND '.join(self.ends)}" if self.ends else "")
        with self._reading() as cursor:
            cursor.execute(sql)
            low, high = cursor.fetchone()
        if low is None:
            return [IdRange(0, 0)]  # for no part at all Spark would ask for one that it does not name
        step = max(self.rows, -(-(high - low + 1) // MOST_RANGES))
        return [IdRange(start, min(start + step, high + 1)) for start in range(low, high + 1, step)]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        assert isinstance(partition, IdRange)
        limits = [f"{each} >= {partition.low} AND {each} < {partition.high}" for each in self.relation.ranges]
        columns = ", ".join(self._given(field.name) for field in self.columns)
        with self._reading() as cursor:
            where = " AND ".join([*limits, *self.conditions])
            cursor.execute(f"SELECT {columns} FROM {self.relation.origin} WHERE {where}")
            target = _arrow_schema(self.columns)
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    yield _as(batch, target)

    def _given(self, name: str) -> str:
        """A column as the driver can give it.

        PostgreSQL's driver knows no jsonb. SQLite's tells a column's type by its first rows, so a text among them
        must not be null; where a null is possible, _column() knows which text is meant as null.
        """
        sql, kind = self.relation.sql(name), self.columns[name].dataType
        if self.database.vendor == "postgresql":
            return f"CAST({sql} AS text)" if name == "body" else sql
        return f"coalesce({sql}, char(0))" if isinstance(kind, AS_TEXT) else sql

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        """A cursor within the snapshot."""
        dbapi = importlib.import_module(f"adbc_driver_{self.database.vendor}.dbapi")
        options = BOUNDED[self.database.vendor]
        with dbapi.connect(self.database.uri) as connection, connection.cursor() as cursor:
            for each in entering(self.snapshot):
                cursor.execute(each)
            cursor.adbc_statement.set_options(**options)
            yield cursor


def _arrow_schema(schema: StructType) -> "pyarrow.Schema":
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _as(batch: "pyarrow.RecordBatch", target: "pyarrow.Schema") -> "pyarrow.RecordBatch":
    """The batch with the types that Spark was promised."""
    import pyarrow

    columns = [_column(batch.column(i), field) for i, field in enumerate(target)]
    return pyarrow.RecordBatch.from_arrays(columns, schema=target)


def _column(values: Any, field: Any) -> Any:
    """The values with the field's type. SQLite keeps instants as text, in UTC; and see _given() for nulls."""
    import pyarrow
    from pyarrow import compute, types

    if types.is_string(values.type) and (field.nullable or types.is_timestamp(field.type)):
        values = compute.if_else(compute.equal(values, NO_TEXT), pyarrow.scalar(None, values.type), values)
    if values.type == field.type:
        return values
    if types.is_timestamp(field.type) and types.is_string(values.type):
        return compute.assume_timezone(values.cast(pyarrow.timestamp(field.type.unit)), "UTC")
    return values.cast(field.type)
