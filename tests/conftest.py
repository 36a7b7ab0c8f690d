"""What every test can ask for, and the summary that says at the end what a run consisted of.

A layer is a directory under tests/. One run of pytest has one database: SQLite unless
DELAYTASKS_TEST_DB=postgres. `make test` makes both passes. Servers start when the first test
asks for them, one set per process, and are stopped at the end.
"""

import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections, transaction
from django.utils import translation
from hypothesis import settings as hypothesis_settings

from tests.browsing import _chromium, browser, site, visitor  # noqa: F401  fixtures
from tests.servers import PostgresServer, RedisServer

LAYERS = (
    "unit", "contract", "api", "http", "lua", "property", "admin", "shop", "pipeline", "acceptance", "torture",
    "packaging",
)  # fmt: skip
RUN_ONCE = ("unit", "packaging")  # only in the SQLite pass of `make test`
BROWSED = "sqlite"  # what a browser shows is the same on each database; what is asked of it is tested on both
HERE = Path(__file__).parent

used_servers = pytest.StashKey[set[str]]()
not_run = pytest.StashKey[set[str]]()  # what this machine could not run, and what to do; said at the end


# Servers


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """The session's Redis. Tests keep apart by PREFIX; a test that flushes or stops it disturbs nobody."""
    with RedisServer() as server:
        request.config.stash[used_servers].add(server.version)
        yield server


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """The session's PostgreSQL."""
    with PostgresServer() as server:
        request.config.stash[used_servers].add(server.version)
        yield server


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Points Django's test database at this process's own server or file."""
    database = connections.settings["default"]
    if connections["default"].vendor == "postgresql":
        database.update(request.getfixturevalue("postgres_server").settings)
        database["TEST"]["NAME"] = "test_delaytasks"
    else:
        # A file: threads must meet in it as they do in production, and a shared in-memory database locks differently.
        database["TEST"]["NAME"] = str(tmp_path_factory.mktemp("database") / "test.sqlite3")
        request.config.stash[used_servers].add(f"SQLite {sqlite3.sqlite_version} (Python's)")


@pytest.fixture(scope="session")
def _emptied_tables(django_db_setup: None, django_db_blocker: Any) -> list[str]:
    """The tables that a test may leave rows in."""
    with django_db_blocker.unblock():
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return [table for table in tables if table not in ("django_content_type", "auth_permission")]


@pytest.fixture
def transactional_db(_emptied_tables: list[str], django_db_blocker: Any) -> Iterator[None]:
    """As pytest-django's: tests commit, and the next one finds the tables as migrate left them.

    Emptied by DELETE. TRUNCATE, content types and permissions anew would take longer than most tests.
    """
    from delaytasks import topics
    from delaytasks.models import Topic

    with django_db_blocker.unblock():
        yield
        connection.close_if_unusable_or_obsolete()  # a test may have killed it
        with transaction.atomic(), connection.cursor() as cursor:  # the foreign keys are looked at when it commits
            for table in _emptied_tables:
                cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
        Topic.objects.bulk_create([Topic(name=name) for name in topics.handled()], ignore_conflicts=True)


@pytest.fixture(autouse=True)
def _own_language() -> Iterator[None]:
    """A request in Chinese leaves its thread speaking Chinese; the next test is not to."""
    yield
    translation.deactivate()


# The mirror


@pytest.fixture
def _nobody_listens() -> None:
    """Ends the thread that a consumer's test left listening: it would connect to the next test's Redis, too."""
    from delaytasks import waiting

    listening = waiting.room("default")._thread
    if listening is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waiting, "STAYS_SECONDS", 0.0)
            listening.join(10)
        assert not listening.is_alive(), "somebody still waits for a job"


@pytest.fixture
def with_redis(_nobody_listens: None, redis_server: RedisServer, settings: Any) -> Iterator[dict[str, Any]]:
    """DELAYTASKS with a Redis and a prefix of its own. Never leaves a key behind, nor a Redis that is stopped."""
    prefix = f"t{uuid4().hex[:12]}"
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": redis_server.url(), "PREFIX": prefix}
    yield settings.DELAYTASKS
    from delaytasks.mirror import connect

    found = connect()
    if found is not None:
        found.close()
    if not redis_server.process or redis_server.process.poll() is not None:
        redis_server.start()
    client = redis_server.client()
    for key in client.scan_iter(f"*{prefix}*", count=10_000):
        client.delete(key)
    client.close()


@pytest.fixture
def mirror(with_redis: dict[str, Any]) -> Any:
    """A connected Mirror on an empty prefix."""
    from delaytasks.mirror import connect

    return connect()


@pytest.fixture(params=["mirror", "no-mirror"])
def places(request: pytest.FixtureRequest, settings: Any) -> Any:
    """Where due jobs are looked for: once the mirror, once the database alone."""
    if request.param == "mirror":
        request.getfixturevalue("with_redis")
    else:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None}
    from delaytasks import engine

    return engine.places(engine.alias())


# The clock


class SettableClock:
    """The database's time, standing still until it is told to go on."""

    def __init__(self, now_ms: int) -> None:
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        from delaytasks import dialect

        self.now_ms = now_ms
        dialect.set_clock(now_ms)

    def advance(self, *, ms: int = 0, seconds: float = 0) -> int:
        """The new time in ms."""
        self.set(self.now_ms + ms + round(seconds * 1000))
        return self.now_ms


@pytest.fixture
def db_clock() -> Iterator[SettableClock]:
    """Every statement of this process sees this clock's time: 2030-01-01 00:00 UTC until it is moved."""
    from delaytasks import dialect, engine

    yield SettableClock(1_893_456_000_000)
    dialect.set_clock(None)
    engine.clock.cache_clear()  # what asked for the skew has learned this time, and would believe it for 15 s


# Which tests run in which pass


def pytest_configure(config: pytest.Config) -> None:
    config.stash[used_servers] = set()
    config.stash[not_run] = set()
    # How long an example takes says more about the machine than about what is tested.
    hypothesis_settings.register_profile("unhurried", parent=hypothesis_settings(), deadline=None)
    hypothesis_settings.load_profile("unhurried")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is meant for the other database's pass. It is not skipped: `make test` makes both passes."""
    vendor = "postgresql" if django_settings.TEST_DB == "postgres" else "sqlite"
    elsewhere = []
    for item in items:
        marker = item.get_closest_marker("only_on")
        if marker and layer_of(item.nodeid) in RUN_ONCE:
            raise pytest.UsageError(f"{item.nodeid}: only_on() is for layers that run on both databases.")
        if (marker and marker.args != (vendor,)) or (in_browser(item) and vendor != BROWSED):
            elsewhere.append(item)
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


def in_browser(item: pytest.Item) -> bool:
    return any(marker.args == ("browser",) for marker in item.iter_markers("xdist_group"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A machine without a browser, and without root to install one, runs all the rest; the end says so loudly."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None] if in_browser(item) else []
    if missing:
        cure = "install Debian's chromium and chromium-driver"
        item.config.stash[not_run].add(f"the tests in a browser, as this machine has no {missing[0]}: {cure}")
        pytest.skip(f"there is no {missing[0]} here: {cure}")


# What ran


def layer_of(nodeid: str) -> str:
    parts = Path(nodeid.split("::")[0]).parts
    return parts[1] if len(parts) > 2 and parts[0] == HERE.name else "other"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells the controller which servers it had, and what it could not run."""
    if hasattr(session.config, "workeroutput"):
        servers: set[str] = session.config.stash[used_servers]
        missing: set[str] = session.config.stash[not_run]
        session.config.workeroutput.update(used_servers=sorted(servers), not_run=sorted(missing))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    output = getattr(node, "workeroutput", {})
    node.config.stash[used_servers].update(output.get("used_servers", ()))
    node.config.stash[not_run].update(output.get("not_run", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ran: defaultdict[str, set[str]] = defaultdict(set)
    failed: defaultdict[str, set[str]] = defaultdict(set)
    for outcome in ("passed", "failed", "error", "skipped", "xfailed"):
        for report in terminalreporter.stats.get(outcome, ()):
            ran[layer_of(report.nodeid)].add(report.nodeid)
            if outcome in ("failed", "error"):
                failed[layer_of(report.nodeid)].add(report.nodeid)
    terminalreporter.section(f"what ran on {django_settings.TEST_DB}")
    for layer in sorted(ran, key=lambda name: (LAYERS.index(name) if name in LAYERS else len(LAYERS), name)):
        bad = f", {len(failed[layer])} failed" if failed[layer] else ""
        terminalreporter.write_line(f"{layer:<11} {len(ran[layer]):>5} tests{bad}")
    servers: set[str] = config.stash[used_servers]
    for server in sorted(servers):
        terminalreporter.write_line(server)
    missing: set[str] = config.stash[not_run]
    for what in sorted(missing):
        terminalreporter.write_line(f"NOT RUN: {what}", yellow=True, bold=True)
