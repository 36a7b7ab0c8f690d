"""A real server process: uvicorn with the project, a Redis, a database, and a Celery worker whose thread moves jobs.

`world` is shared by the tests of a module, each of which has a topic of its own. Tests that stop or kill
something have a `fresh_world`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from delaytasks.monitoring.caching import shared_cache
from project.settings import cache
from tests.support.databases import copied, make_template
from tests.support.installation import World
from tests.support.servers import PostgresServer, RedisServer

from ..support.http_client import Api

EVERYTHING = {"produce": True, "consume": True, "manage": True}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests in one worker: they measure time, and each world has half a dozen processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("http"))


@pytest.fixture(scope="session")
def template(database_server: PostgresServer | None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated database, copied for each world."""
    return make_template("http", tmp_path_factory.mktemp("template"), database_server)


@pytest.fixture(scope="module")
def http_parser() -> str:
    """The HTTP parser of the module's web process. A module may override it."""
    return "h11"


@contextmanager
def running(
    directory: Path, template: str, server: PostgresServer | None, blocker: Any, http: str = "h11", **env: str
) -> Iterator[World]:
    """Start a world: its web process answers and its worker is ready. Django's default connection uses its database."""
    env = {"DJANGO_SETTINGS_MODULE": "tests.server.settings"} | env
    with blocker.unblock(), copied(template, f"http_{uuid4().hex}", directory, server) as url, RedisServer() as redis:
        world = World(directory, redis, url, **env)
        try:
            world.start_worker(concurrency=1)
            world.start_web(http=http)
            world.await_workers()
            yield world
        finally:
            world.stop_all()


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest,
    template: str,
    database_server: PostgresServer | None,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_blocker: Any,
    http_parser: str,
) -> Iterator[World]:
    """The module's world. A module sets ENVIRONMENT to change the environment of its processes."""
    env = getattr(request.module, "ENVIRONMENT", {})
    directory = tmp_path_factory.mktemp("world")
    with running(directory, template, database_server, django_db_blocker, http_parser, **env) as world:
        yield world


@pytest.fixture
def fresh_world(
    template: str, database_server: PostgresServer | None, tmp_path: Path, django_db_blocker: Any
) -> Iterator[World]:
    """A world for a single test, which may break it."""
    with running(tmp_path, template, database_server, django_db_blocker) as world:
        yield world


@pytest.fixture
def here(request: pytest.FixtureRequest, database_server: PostgresServer | None, settings: Any) -> Iterator[World]:
    """The world of this test: fresh_world if requested. Calls in the test process use the same Redis and cache.

    With the same cache, a web process is told at its next counted request that the test has revoked a token.
    """
    name = "fresh_world" if "fresh_world" in request.fixturenames else "world"
    world: World = request.getfixturevalue(name)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": world.redis.url()}
    settings.CACHES = {"default": cache(world.redis.url())}
    yield world
    shared_cache._redis().connection_pool.disconnect()


@pytest.fixture
def topic(here: World) -> str:
    """A new topic, known by its row."""
    from delaytasks.models import Topic

    return Topic.objects.create(name=f"test.{uuid4().hex[:12]}").name


@pytest.fixture
def make_token(here: World) -> Callable[..., str]:
    """make_token({"order.*": EVERYTHING}, name="php") returns the secret. By default without a rate limit."""
    from delaytasks.api.models import Grant, ServiceAccount, Token

    def make(grants: dict[str, dict[str, bool]], *, name: str = "", rate_per_minute: int = 1_000_000) -> str:
        account, _ = ServiceAccount.objects.get_or_create(name=name or f"test-{uuid4().hex[:8]}")
        token, secret = Token.objects.create_key(name="test", account=account, rate_per_minute=rate_per_minute)
        Grant.objects.bulk_create(Grant(token=token, topic=topic, **rights) for topic, rights in grants.items())
        return secret

    return make


@pytest.fixture
def api(here: World, make_token: Callable[..., str]) -> Api:
    """A client whose token has every right on every topic."""
    return Api(here.port, make_token({"*": EVERYTHING}))


@pytest.fixture(scope="session")
def go_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of Go's compiler: a cache of this session's, and no network."""
    home = tmp_path_factory.mktemp("go")
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GOCACHE": str(home / "cache"), "GOPROXY": "off"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    report = yield
    world = getattr(item, "funcargs", {}).get("here")
    if report.when == "call" and report.failed and world is not None:
        report.sections += world.logs()
    return report
