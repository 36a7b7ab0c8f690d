"""Shared fixtures, the choice of tests for each database, and a summary of what ran.

One run of pytest uses one database: SQLite unless DELAYTASKS_TEST_DB=postgres. `make test` makes both passes at once.
Servers start when the first test needs them, one set per process, and are stopped at the end.
"""

import gc
import logging
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as django_settings
from django.core.cache import cache
from django.db import connection, connections, transaction
from django.utils import translation
from hypothesis import settings as hypothesis_settings

from delaytasks import topics
from tests.support import rabbitmq
from tests.support.browser_fixtures import _profiles, console_errors, page, site, visitor  # noqa: F401  fixtures
from tests.support.databases import second_database  # noqa: F401  fixture
from tests.support.servers import PostgresServer, RedisServer
from tests.support.spans import spans  # noqa: F401  fixture
from tests.support.stage import stage, ttr_state  # noqa: F401  fixtures

pytest_plugins = ["delaytasks.testing.plugin"]  # other projects load it by its entry point

BOTH = ("sqlite", "postgresql")
QUICKER = ("sqlite",)
PRODUCTION = ("postgresql",)
# Folders whose tests run on one database, unless marked on_both: pages, and rooms that use the engine's functions, on
# the quicker one; real processes on the one that is used in production.
ABOVE_SQL = ("admin", "api", "project", "recurrence", "testing")
PROCESSES = ("acceptance", "server")
DATABASE_FIXTURES = {"db", "transactional_db", "django_db_setup", "database_server"}
# DISCARD ALL without the plans, of which psycopg keeps a list: what a test has set, locked or created in its session of
# PostgreSQL is gone.
NEW_SESSION = (
    "CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD TEMP; "
    "DISCARD SEQUENCES"
)
# Folders whose single tests take seconds. They run first, so that short tests keep all workers busy at the end.
SLOW = ("packaging", "acceptance", "server", "pipeline")
HERE = Path(__file__).parent

used_servers = pytest.StashKey[set[str]]()
not_run = pytest.StashKey[set[str]]()  # what this machine could not run and what to install; shown at the end


# Servers


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """The session's Redis. Each test uses its own PREFIX; a test that flushes or stops it disturbs no other test."""
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
def rabbit_server(request: pytest.FixtureRequest) -> Iterator[rabbitmq.RabbitServer]:
    """The pass's RabbitMQ. Each test uses names of its own, and starts it again if it has stopped it."""
    if not rabbitmq.PROGRAM.exists():
        remedy = "install Debian's rabbitmq-server, or set DELAYTASKS_TEST_RABBITMQ"
        request.config.stash[not_run].add(f"tests of a RabbitMQ, because there is no {rabbitmq.PROGRAM}: {remedy}")
        pytest.skip(f"There is no {rabbitmq.PROGRAM}: {remedy}")
    with rabbitmq.RabbitServer(max_message_size="100000") as server:
        request.config.stash[used_servers].add(server.version)
        yield server


@pytest.fixture(scope="session")
def database_server(request: pytest.FixtureRequest) -> PostgresServer | None:
    """The PostgreSQL of this pass, for additional databases; None in the SQLite pass."""
    return request.getfixturevalue("postgres_server") if connection.vendor == "postgresql" else None


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use this process's own server or file for Django's test database."""
    database = connections.settings["default"]
    if connections["default"].vendor == "postgresql":
        database.update(request.getfixturevalue("postgres_server").settings)
        database["TEST"]["NAME"] = "test_delaytasks"
    else:
        # A file, as in production: a shared in-memory database locks differently.
        database["TEST"]["NAME"] = str(tmp_path_factory.mktemp("database") / "test.sqlite3")
        request.config.stash[used_servers].add(f"SQLite {sqlite3.sqlite_version} (Python's)")


@pytest.fixture(scope="session")
def _emptied_tables(django_db_setup: None, django_db_blocker: Any) -> list[str]:
    """The tables that a test may leave rows in."""
    with django_db_blocker.unblock():
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return [table for table in tables if table not in ("django_content_type", "auth_permission")]


@pytest.fixture
def db(request: pytest.FixtureRequest) -> None:
    """pytest-django's `db`, or our `transactional_db` in a test that commits: theirs flushes all tables again."""
    request.getfixturevalue("transactional_db" if "transactional_db" in request.fixturenames else "db")


@pytest.fixture(autouse=True)
def _django_db_marker(request: pytest.FixtureRequest) -> None:
    """pytest-django's meaning of `django_db`, but a test that commits, in one database, uses our `transactional_db`."""
    marker = request.node.get_closest_marker("django_db")
    if marker:
        commits = marker.kwargs.get("transaction") or "transactional_db" in request.fixturenames
        ours = commits and marker.kwargs.keys() <= {"transaction"}
        request.getfixturevalue("transactional_db" if ours else "_django_db_helper")


@pytest.fixture
def transactional_db(_emptied_tables: list[str], django_db_blocker: Any) -> Iterator[None]:
    """Let tests commit, and reset the tables afterwards, as pytest-django does.

    With DELETE: TRUNCATE and new content types and permissions would take longer than most tests. So would a new
    connection; PostgreSQL's session is reset instead.
    """
    from delaytasks import handlers
    from delaytasks.models import Topic

    with django_db_blocker.unblock():
        yield
        connection.close_at = None
        connection.close_if_unusable_or_obsolete()  # a test may have killed it
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(NEW_SESSION)
        statements = [f"DELETE FROM {connection.ops.quote_name(table)}" for table in _emptied_tables]
        with transaction.atomic(), connection.cursor() as cursor:  # foreign keys are checked at the commit
            for statement in statements if connection.vendor == "sqlite" else ["; ".join(statements)]:
                cursor.execute(statement)
        Topic.objects.bulk_create([Topic(name=name) for name in handlers.handled()], ignore_conflicts=True)


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """Let no test see the statistics, counts of requests and tokens that earlier ones have cached in this process."""
    cache.clear()


@pytest.fixture(autouse=True)
def _own_topic_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache the rows of topics until the test clears the cache, however long it runs."""
    topics.clear_cache()
    monkeypatch.setattr(topics, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.fixture(autouse=True)
def _own_language() -> Iterator[None]:
    """Reset the thread's language, which a request in Chinese changes."""
    yield
    translation.deactivate()


@pytest.fixture(autouse=True)
def _own_log_format(request: pytest.FixtureRequest) -> None:
    """Keep PySpark's loggers from replacing the formatter of pytest's handlers, for all later tests.

    pytest adds its handlers to each logger that does not propagate, and PySpark's class formats what is added to it.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and type(logger).__name__ == "PySparkLogger":
            logger.propagate = True
    plugin: Any = request.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter(plugin.formatter)


# The mirror


@pytest.fixture
def _no_listener() -> None:
    """End the listener thread of an earlier consumer test, which would connect to this test's Redis."""
    from delaytasks.api import notifier

    listening = notifier.waiting_consumers("default")._thread
    if listening is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(notifier, "IDLE_SECONDS", 0.0)
            listening.join(10)
        assert not listening.is_alive(), "a long poll still waits for a job"


@pytest.fixture
def with_redis(_no_listener: None, redis_server: RedisServer, settings: Any) -> Iterator[dict[str, Any]]:
    """DELAYTASKS with a Redis and a prefix of its own. Afterwards its keys are deleted and Redis is running."""
    prefix = f"t{uuid4().hex[:12]}"
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": redis_server.url(), "PREFIX": prefix}
    yield settings.DELAYTASKS
    from delaytasks.mirror import connect

    connected = connect()
    if connected is not None:
        connected.close()
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
def due_index(request: pytest.FixtureRequest, settings: Any) -> Any:
    """The due-job index: the mirror, and the database without a mirror."""
    if request.param == "mirror":
        request.getfixturevalue("with_redis")
    else:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None}
    from delaytasks import databases, mirror

    return mirror.choose(databases.alias())


# The clock


class SettableClock:
    """The database's time, which changes only by set() and advance()."""

    def __init__(self, now_ms: int) -> None:
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        from delaytasks.db import dialects

        self.now_ms = now_ms
        dialects.set_clock(now_ms)

    def advance(self, *, ms: int = 0, seconds: float = 0) -> int:
        """Advance the time. Return the new time in ms."""
        self.set(self.now_ms + ms + round(seconds * 1000))
        return self.now_ms


@pytest.fixture
def db_clock() -> Iterator[SettableClock]:
    """The time of every statement of this process: 2030-01-01 00:00 UTC until it is changed."""
    from delaytasks import databases
    from delaytasks.db import dialects

    yield SettableClock(1_893_456_000_000)
    dialects.set_clock(None)
    databases.clock.cache_clear()  # DatabaseClock has learned this time and would use it for 15 s


# Which tests run in which pass


def pytest_configure(config: pytest.Config) -> None:
    config.stash[used_servers] = set()
    config.stash[not_run] = set()
    # No deadline: the duration of an example depends on the machine.
    hypothesis_settings.register_profile("unhurried", parent=hypothesis_settings(), deadline=None)
    hypothesis_settings.load_profile("unhurried")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Disable the garbage collector during collection: it would scan the collected tests again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of the other database's pass. They are not skipped: `make test` makes both passes."""
    vendor = "postgresql" if django_settings.TEST_DB == "postgres" else "sqlite"
    other_pass = {item for item in items if vendor not in databases_of(item)}
    if other_pass:
        config.hook.pytest_deselected(items=list(other_pass))
        items[:] = [item for item in items if item not in other_pass]
    for item in items:
        if "rabbit_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("rabbit"))  # in one process: its start takes four seconds of CPU
    items.sort(key=lambda item: folder_of(item.nodeid) not in SLOW)


def databases_of(item: pytest.Item) -> tuple[str, ...]:
    """Return the databases on which this test runs: by its closest marker, or by its folder and fixtures."""
    for marker in item.iter_markers():
        if marker.name in ("only_on", "on_both"):
            return marker.args or BOTH
    folder = folder_of(item.nodeid)
    if folder in PROCESSES:
        return PRODUCTION
    return BOTH if uses_database(item) and folder not in ABOVE_SQL and not in_browser(item) else QUICKER


def uses_database(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("django_db") is not None or not DATABASE_FIXTURES.isdisjoint(fixtures)


def in_browser(item: pytest.Item) -> bool:
    return any(marker.args == ("browser",) for marker in item.iter_markers("xdist_group"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip browser tests on a machine without a browser; the summary says so."""
    if in_browser(item) and shutil.which("chromium") is None:
        remedy = "install Debian's chromium"
        item.config.stash[not_run].add(f"browser tests, because chromium is not installed: {remedy}")
        pytest.skip(f"chromium is not installed: {remedy}")


# What ran


def folder_of(nodeid: str) -> str:
    """Return the folder of a test below tests/; "tests" for a test directly in it."""
    parts = Path(nodeid.split("::")[0]).parts
    return parts[1] if len(parts) > 2 and parts[0] == HERE.name else HERE.name


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report servers and missing programs from an xdist worker to the controller."""
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
            ran[folder_of(report.nodeid)].add(report.nodeid)
            if outcome in ("failed", "error"):
                failed[folder_of(report.nodeid)].add(report.nodeid)
    terminalreporter.section(f"tests on {django_settings.TEST_DB}")
    for folder in sorted(ran):
        bad = f", {len(failed[folder])} failed" if failed[folder] else ""
        terminalreporter.write_line(f"{folder:<11} {len(ran[folder]):>5} tests{bad}")
    servers: set[str] = config.stash[used_servers]
    for server in sorted(servers):
        terminalreporter.write_line(server)
    missing: set[str] = config.stash[not_run]
    for reason in sorted(missing):
        terminalreporter.write_line(f"NOT RUN: {reason}", yellow=True, bold=True)
