"""Column types of rules, and the stored types that can be read as each of them."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .rules import TYPE, Rule

SIMPLE: dict[str, DataType] = {
    "bigint": LongType(), "int": IntegerType(), "smallint": ShortType(), "string": StringType(),
    "boolean": BooleanType(), "timestamp": TimestampType(), "date": DateType(), "double": DoubleType(),
}  # fmt: skip
INTEGERS = ("smallint", "int", "bigint")  # each type can be read as the types after it


def schema_of(rule: Rule) -> StructType:
    return StructType([StructField(name, type_of(kind), True) for name, kind in rule.columns.items()])


def type_of(kind: str) -> DataType:
    match = TYPE.fullmatch(kind)
    precision, scale = match.groups() if match else (None, None)
    return DecimalType(int(precision), int(scale)) if precision and scale else SIMPLE[kind]


def can_read(actual: str, wanted: str, *, as_text: bool) -> bool:
    """Return whether the stored type `actual` can be read as `wanted`. as_text: any type can be read as string."""
    if wanted == "string":
        return as_text or actual == "string"
    if wanted in INTEGERS:
        return actual in INTEGERS[: INTEGERS.index(wanted) + 1]
    return actual == wanted or (actual == "decimal" and wanted.startswith("decimal"))


def no_column(where: str, name: str, actual: Mapping[str, Any]) -> str:
    return f"{where} has no column {name}; its columns are {', '.join(sorted(actual))}."
