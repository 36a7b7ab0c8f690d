"""Identity of a database, whatever the connection's host and user. The lake stores it, to refuse another database."""

import os
from collections.abc import Mapping
from typing import Any

from .database import Database

Identity = Mapping[str, str]


def identify(database: Database, connection: Any) -> dict[str, str]:
    """Return {"vendor", "name"}; for PostgreSQL also "schema" and, if the user may read it, "system".

    name     name of the database; for SQLite the real path of the file
    system   system identifier of the server: dump and restore or pg_upgrade change it, a physical copy keeps it
    """
    if database.vendor == "sqlite":
        return {"vendor": "sqlite", "name": os.path.realpath(database.name)}
    sql = "SELECT current_database(), current_schema(), has_function_privilege('pg_control_system()', 'execute')"
    name, schema, readable = connection.execute(sql).fetchone()
    values = {"vendor": "postgresql", "name": str(name), "schema": str(schema)}
    if readable:
        row = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        values["system"] = str(row[0])
    return values


def differ(one: Identity, other: Identity) -> bool:
    """Return whether two identities differ in a member that both have."""
    return any(one[name] != other[name] for name in one.keys() & other.keys())


def describe(identity: Identity) -> str:
    details = [f", {name} {identity[name]}" for name in ("schema", "system") if name in identity]
    return f"{identity['vendor']} {identity['name']}{''.join(details)}"
