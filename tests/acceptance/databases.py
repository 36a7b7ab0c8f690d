"""Databases for whole worlds: one is migrated, each world gets a copy of it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from tests.servers import PostgresServer

from .world import ROOT, environment


def migrate(directory: Path, database_url: str, settings: str) -> None:
    env = environment(directory, database_url) | {"DJANGO_SETTINGS_MODULE": settings}
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "migrate", "--run-syncdb", "--verbosity=0"],
        env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def make_template(
    name: str, directory: Path, server: PostgresServer | None, *, settings: str = "tests.acceptance.settings"
) -> str:
    """A migrated database to copy: its name on the server, or the path of a SQLite file."""
    if server is not None:
        migrate(directory, server.make_database(name), settings)
        return name
    path = directory / f"{name}.sqlite3"
    migrate(directory, f"sqlite:///{path}", settings)
    return str(path)


@contextmanager
def copied(template: str, name: str, directory: Path, server: PostgresServer | None) -> Iterator[str]:
    """The URL of a copy; Django's default connection leads to it inside the block."""
    if server is not None:
        name = name.replace("-", "_")[:63]
        with server.connect(autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        url, changed = server.url(name), {**server.settings, "NAME": name}
    else:
        path = directory / "db.sqlite3"
        shutil.copy(template, path)
        url, changed = f"sqlite:///{path}", {"NAME": str(path)}
    before = {key: connection.settings_dict[key] for key in changed}
    connection.close()
    connection.settings_dict.update(changed)
    try:
        yield url
    finally:
        connection.close()
        connection.settings_dict.update(before)
