"""The types that a rule may give a column, and what can be read as which."""

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
WHOLE = ("smallint", "int", "bigint")  # each fits into those after it


def schema_of(rule: Rule) -> StructType:
    return StructType([StructField(name, type_of(kind), True) for name, kind in rule.columns.items()])


def type_of(kind: str) -> DataType:
    found = TYPE.fullmatch(kind)
    digits, after = found.groups() if found else (None, None)
    return DecimalType(int(digits), int(after)) if digits and after else SIMPLE[kind]


def fits(found: str, wanted: str, *, anything: bool) -> bool:
    """Whether what is of one type can be read as another. anything: all can be read as text."""
    if wanted == "string":
        return anything or found == "string"
    if wanted in WHOLE:
        return found in WHOLE[: WHOLE.index(wanted) + 1]
    return found == wanted or (found == "decimal" and wanted.startswith("decimal"))


def no_column(where: str, name: str, found: Mapping[str, Any]) -> str:
    return f"{where} has no column {name}; it has {', '.join(sorted(found))}."
