"""Real processes. Each test has a Redis and a database of its own; a failure shows what the processes last said."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.servers import PostgresServer, RedisServer

from .databases import copied, make_template
from .world import World

_world = pytest.StashKey[World]()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> PostgresServer | None:
    """The PostgreSQL of this pass; None in the pass over SQLite."""
    return request.getfixturevalue("postgres_server") if connection.vendor == "postgresql" else None


@pytest.fixture(scope="session")
def template(server: PostgresServer | None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated database that each test gets a copy of."""
    return make_template("acceptance", tmp_path_factory.mktemp("template"), server)


@pytest.fixture
def database(server: PostgresServer | None, template: str, tmp_path: Path, django_db_blocker: Any) -> Iterator[str]:
    """The URL of this test's own database; Django's default connection leads to it meanwhile."""
    name = f"world_{tmp_path.parent.name}_{tmp_path.name}"
    with django_db_blocker.unblock(), copied(template, name, tmp_path, server) as url:
        yield url


@pytest.fixture
def world(request: pytest.FixtureRequest, database: str, tmp_path: Path, settings: Any) -> Iterator[World]:
    with RedisServer() as redis:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": redis.url()}
        world = World(tmp_path, redis, database)
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
        report.sections += world.logs()
    return report
