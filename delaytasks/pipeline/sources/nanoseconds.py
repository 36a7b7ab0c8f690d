"""Timestamps in nanoseconds, as pandas writes them to Parquet. An option in session.NEEDED lets Spark read integers.

Spark reads only INT96, an older type for nanoseconds, as timestamps in UTC.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

if TYPE_CHECKING:
    import pyarrow


def read_footer(file: "pyarrow.NativeFile") -> "tuple[pyarrow.Schema, int]":
    """Return the schema and the number of rows of a Parquet file.

    As in Spark, INT96 is a timestamp in microseconds, a category has the type of its values, and all texts are strings.
    """
    import pyarrow
    from pyarrow import parquet

    opened = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    stored = map(opened.schema.column, range(len(opened.schema)))
    int96 = {each.path for each in stored if each.physical_type == "INT96"}
    utc = pyarrow.timestamp("us", "UTC")
    fields = [each.with_type(utc if each.name in int96 else _value_type(each.type)) for each in opened.schema_arrow]
    return pyarrow.schema(fields), opened.metadata.num_rows


def _value_type(kind: "pyarrow.DataType") -> "pyarrow.DataType":
    import pyarrow
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    return pyarrow.string() if types.is_large_string(value) or types.is_string_view(value) else value


def columns_of(schema: "pyarrow.Schema") -> "dict[str, pyarrow.DataType]":
    """Return name -> type of each column with timestamps in nanoseconds, also inside structs, lists and maps."""
    return {field.name: field.type for field in schema if _has_nanoseconds(field.type)}


def _has_nanoseconds(kind: "pyarrow.DataType") -> bool:
    return _is_nanoseconds(kind) or any(_has_nanoseconds(kind.field(n).type) for n in range(kind.num_fields))


def _is_nanoseconds(kind: "pyarrow.DataType") -> bool:
    from pyarrow import types

    return bool(types.is_timestamp(kind)) and kind.unit == "ns"


def as_integers(schema: StructType, names: Iterable[str]) -> StructType:
    """Return the schema with integers for these columns, so that Spark can read their nanoseconds."""
    return StructType([StructField(each.name, LongType()) if each.name in names else each for each in schema])


def to_timestamps(value: Column, kind: "pyarrow.DataType") -> Column:
    """Return a value with timestamps, rounded down to microseconds, instead of nanoseconds.

    kind   the value's type in the file. Timestamps without a zone become local times
    """
    from pyarrow import types

    if types.is_struct(kind):
        fields = [to_timestamps(value.getField(each.name), each.type).alias(each.name) for each in kind]
        return F.when(value.isNotNull(), F.struct(*fields))
    if types.is_map(kind):
        items = F.transform_values(value, lambda _, item: to_timestamps(item, kind.item_type))
        return F.transform_keys(items, lambda key, _: to_timestamps(key, kind.key_type))
    if types.is_nested(kind):
        return F.transform(value, lambda item: to_timestamps(item, kind.value_type))
    if not _is_nanoseconds(kind):
        return value
    whole = value - F.pmod(value, F.lit(1000))  # div alone rounds up before 1970
    moment = F.timestamp_micros(F.call_function("div", whole, F.lit(1000)))
    return moment if kind.tz is not None else moment.cast("timestamp_ntz")
