"""Translate Spark's filters into SQL, except filters that the database would evaluate differently from Spark."""

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
_NOT_COMPARABLE = "body"  # text in Spark, but jsonb in PostgreSQL, which compares by value


def condition(each: Filter, relation: Relation, vendor: str) -> str | None:
    """Return the filter as an SQL condition, or None if Spark must apply the filter itself."""
    (name, *nested) = getattr(each, "attribute", ("",))
    if nested or name == _NOT_COMPARABLE or name not in relation.columns.names:
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
        return None  # each database sorts text by its own collation
    return None if operator is None or value is None else f"{sql} {operator} {value}"


def literal(value: Any, vendor: str) -> str | None:
    """Return the SQL literal of an integer, text or aware datetime; None for other values.

    Text with a null character or a backslash also gives None.
    """
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
    return f"'{utc.replace(tzinfo=None)}'"  # as Django stores it in SQLite
