"""Real processes. Each test has its own Redis and database; a failure report shows the processes' last output."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import PostgresServer, RedisServer

from ..support.databases import copied, make_template
from ..support.installation import World

_world = pytest.StashKey[World]()


@pytest.fixture(scope="session")
def template(database_server: PostgresServer | None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated database; each test gets a copy of it."""
    return make_template("acceptance", tmp_path_factory.mktemp("template"), database_server)


@pytest.fixture
def database(
    database_server: PostgresServer | None, template: str, tmp_path: Path, django_db_blocker: Any
) -> Iterator[str]:
    """The URL of this test's database, which is Django's default database meanwhile."""
    name = f"world_{tmp_path.parent.name}_{tmp_path.name}"
    with django_db_blocker.unblock(), copied(template, name, tmp_path, database_server) as url:
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
