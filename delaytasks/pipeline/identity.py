"""Which database it is, however it is reached: so that two of them do not take one lake for theirs."""

import os
from collections.abc import Mapping
from typing import Any

from .database import Database

Identity = Mapping[str, str]


def of(database: Database, connection: Any) -> dict[str, str]:
    """vendor, name; SQLite's is its path. For PostgreSQL the schema, and the cluster's number where it may be read.

    The number is another one after dump and restore and after pg_upgrade, and the same one in a physical copy.
    """
    if database.vendor == "sqlite":
        return {"vendor": "sqlite", "name": os.path.realpath(database.name)}
    sql = "SELECT current_database(), current_schema(), has_function_privilege('pg_control_system()', 'execute')"
    name, schema, readable = connection.execute(sql).fetchone()
    found = {"vendor": "postgresql", "name": str(name), "schema": str(schema)}
    if readable:
        row = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        found["system"] = str(row[0])
    return found


def differ(one: Identity, other: Identity) -> bool:
    """Whether they are of two databases; what one of them does not tell says nothing."""
    return any(one[name] != other[name] for name in one.keys() & other.keys())


def words(identity: Identity) -> str:
    more = [f", {name} {identity[name]}" for name in ("schema", "system") if name in identity]
    return f"{identity['vendor']} {identity['name']}{''.join(more)}"
