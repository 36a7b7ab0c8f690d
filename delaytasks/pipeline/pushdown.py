"""Filters of Spark in the SQL of the database; None for what only Spark can decide as Spark means it."""

import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from .relations import Relation

_ORDERED = {GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
_COMPARED = {EqualTo: "=", **_ORDERED}
_OTHER_THERE = "body"  # PostgreSQL's jsonb arrives as text, and there compares as what it says


def condition(each: Filter, relation: Relation, vendor: str) -> str | None:
    (name, *nested) = getattr(each, "attribute", ("",))
    if nested or name == _OTHER_THERE or name not in relation.columns.names:
        return None
    sql = relation.sql(name)
    if isinstance(each, IsNull | IsNotNull):
        return f"{sql} IS {'NOT ' if isinstance(each, IsNotNull) else ''}NULL"
    if isinstance(each, In):
        values = [literal(value, vendor) for value in each.value]
        return f"{sql} IN ({', '.join(map(str, values))})" if values and None not in values else None
    operator, given = _COMPARED.get(type(each)), getattr(each, "value", None)
    value = literal(given, vendor)
    if type(each) in _ORDERED and isinstance(given, str):
        return None  # each database has an order of its own for texts
    return None if operator is None or value is None else f"{sql} {operator} {value}"


def literal(value: Any, vendor: str) -> str | None:
    """A number, text or instant as a literal; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return None if "\0" in value or "\\" in value else "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime.datetime):
        return _instant(value, vendor)
    return None


def _instant(value: datetime.datetime, vendor: str) -> str | None:
    if value.tzinfo is None:
        return None
    utc = value.astimezone(datetime.UTC)
    if vendor == "postgresql":
        return f"TIMESTAMPTZ '{utc.isoformat()}'"
    return f"'{utc.replace(tzinfo=None)}'"  # as Django stores it there
