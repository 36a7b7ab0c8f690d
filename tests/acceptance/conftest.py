"""Real processes. Each test has a Redis and a database of its own; a failure shows what the processes last said."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.servers import PostgresServer, RedisServer

from .world import ROOT, World, environment

_world = pytest.StashKey[World]()


def migrate(directory: Path, database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "migrate", "--run-syncdb", "--verbosity=0"],
        env=environment(directory, database_url), capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated database that each test gets a copy of: a file's path, or a database's name."""
    directory = tmp_path_factory.mktemp("template")
    if connection.vendor == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        migrate(directory, server.make_database("acceptance"))
        return "acceptance"
    path = directory / "template.sqlite3"
    migrate(directory, f"sqlite:///{path}")
    return str(path)


@pytest.fixture
def database(
    request: pytest.FixtureRequest, template: str, tmp_path: Path, django_db_blocker: Any
) -> Iterator[tuple[str, str]]:
    """(name, URL) of this test's own database; Django's default connection leads to it meanwhile."""
    if connection.vendor == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = f"world_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")[:63]
        with server.connect(autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        url, changed = server.url(name), {**server.settings, "NAME": name}
    else:
        name = str(tmp_path / "db.sqlite3")
        shutil.copy(template, name)
        url, changed = f"sqlite:///{name}", {"NAME": name}
    before = {key: connection.settings_dict[key] for key in changed}
    with django_db_blocker.unblock():
        connection.close()
        connection.settings_dict.update(changed)
        yield name, url
        connection.close()
        connection.settings_dict.update(before)


@pytest.fixture
def world(request: pytest.FixtureRequest, database: tuple[str, str], tmp_path: Path, settings: Any) -> Iterator[World]:
    with RedisServer() as redis:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": redis.url()}
        world = World(tmp_path, redis, database[1])
        request.node.stash[_world] = world
        try:
            yield world
        finally:
            world.stop_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    report = yield
    world = item.stash.get(_world, None)
    if report.when == "call" and report.failed and world is not None:
        report.sections += [
            (process.name, process.log.read_text(errors="replace")[-6000:]) for process in world.processes
        ]
    return report
