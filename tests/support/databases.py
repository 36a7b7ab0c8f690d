"""Databases for acceptance tests: one template is migrated, and each test gets a copy of it. And a second database."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, connections

from tests.support.servers import PostgresServer

from .installation import ROOT, environment


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
    """Migrate a database as a template. Return its name on the server, or the path of the SQLite file."""
    if server is not None:
        migrate(directory, server.make_database(name), settings)
        return name
    path = directory / f"{name}.sqlite3"
    migrate(directory, f"sqlite:///{path}", settings)
    return str(path)


@contextmanager
def copied(template: str, name: str, directory: Path, server: PostgresServer | None) -> Iterator[str]:
    """Copy a template and use the copy as Django's default connection inside the block. Yields the copy's URL."""
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


@contextmanager
def unreachable(server: PostgresServer) -> Iterator[None]:
    """End all sessions of the test's database, and refuse new ones inside the block."""
    name = connection.settings_dict["NAME"]
    connection.close()
    with server.connect(autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')


SECOND = "second"


@pytest.fixture(scope="module")
def second_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Another database, in memory, with the tables of delaytasks and of the models with timeouts. For SQLite."""
    connections.settings[SECOND] = {**connections.settings["default"], "NAME": ":memory:"}
    with django_db_blocker.unblock(), connections[SECOND].schema_editor() as editor:
        for label in ("delaytasks", "declared"):
            for model in apps.get_app_config(label).get_models():
                if model._meta.managed and not model._meta.proxy:
                    editor.create_model(model)
    yield
    with django_db_blocker.unblock():
        connections[SECOND].close()
    del connections[SECOND], connections.settings[SECOND]
