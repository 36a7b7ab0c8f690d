"""Which database it is, however it is reached: so that two of them do not take one lake for theirs."""

import os
from collections.abc import Mapping
from typing import Any

from .database import Database

Identity = Mapping[str, str]


def of(database: Database, connection: Any) -> dict[str, str]:
    """vendor, name, and for PostgreSQL the number of its cluster where the user may read it; SQLite's name is its path.

    The number is another one after dump and restore and after pg_upgrade, and the same one in a physical copy.
    """
    if database.vendor == "sqlite":
        return {"vendor": "sqlite", "name": os.path.realpath(database.name)}
    sql = "SELECT current_database(), has_function_privilege('pg_control_system()', 'execute')"
    name, readable = connection.execute(sql).fetchone()
    found = {"vendor": "postgresql", "name": str(name)}
    if readable:
        row = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        found["system"] = str(row[0])
    return found


def differ(one: Identity, other: Identity) -> bool:
    """Whether they are of two databases; what one of them does not tell says nothing."""
    return any(one[name] != other[name] for name in one.keys() & other.keys())


def words(identity: Identity) -> str:
    system = f" of system {identity['system']}" if "system" in identity else ""
    return f"{identity['vendor']} {identity['name']}{system}"
