"""Timestamps in nanoseconds, as pandas writes them to Parquet. An option in session.NEEDED lets Spark read integers.

Spark reads only INT96, an older type for nanoseconds, as timestamps in UTC.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from ..transforms.mapping import quoted

if TYPE_CHECKING:
    import pyarrow


def read_footer(file: "pyarrow.NativeFile") -> "tuple[pyarrow.Schema, int]":
    """Return the schema and the number of rows of a Parquet file. INT96 is a timestamp in microseconds, as in Spark."""
    import pyarrow
    from pyarrow import parquet

    opened = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    stored = map(opened.schema.column, range(len(opened.schema)))
    int96 = {each.path for each in stored if each.physical_type == "INT96"}
    utc = pyarrow.timestamp("us", "UTC")
    fields = [each.with_type(utc) if each.name in int96 else each for each in opened.schema_arrow]
    return pyarrow.schema(fields), opened.metadata.num_rows


def columns_of(schema: "pyarrow.Schema") -> dict[str, bool]:
    """Return name -> whether its timestamps have a zone, for each top-level column in nanoseconds."""
    from pyarrow import types

    return {
        field.name: field.type.tz is not None
        for field in schema
        if types.is_timestamp(field.type) and field.type.unit == "ns"
    }


def as_integers(schema: StructType, names: Iterable[str]) -> StructType:
    """Return the schema with integers for these columns, so that Spark can read their nanoseconds."""
    return StructType([StructField(each.name, LongType()) if each.name in names else each for each in schema])


def to_timestamp(name: str, *, zone: bool = True) -> Column:
    """Return a column in nanoseconds as a timestamp, rounded down to microseconds. zone: False for a local time."""
    value = quoted(name)
    moment = F.expr(f"timestamp_micros(({value} - pmod({value}, 1000)) div 1000)")  # div alone rounds up before 1970
    return (moment if zone else moment.cast("timestamp_ntz")).alias(name)
