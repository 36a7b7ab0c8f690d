"""A site upgrades by `pip install` and `migrate` while jobs are pending and both releases run.

Two wheels are installed into two directories: one is built from a commit, the other from this tree. Their
processes share a database, a Redis, a broker and a cache. They import nothing from the tree itself.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import PostgresServer, RedisServer

from .releases import Release
from .upgraded_site import Site
from .wheels import build_wheel, extract_commit, install_wheel, run

# The release to upgrade from: the last commit before the modules moved into sub-packages.
OLD_COMMIT = "e35e09253b37c0529da0b4a339316652ae30890d"

# The imports in its README and documents, except those of the pipeline.
DOCUMENTED_IMPORTS = """
import django
from django.conf import settings
from delaytasks.bootsteps import install  # before Django's apps are loaded, as in a site's celery.py
settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "delaytasks"])
django.setup()
from delaytasks import Retry, Snooze, cancel, handler, reschedule, retry_dead, run_now, schedule, schedule_many
from delaytasks.api.bodies import BodyLimit
from delaytasks.backoff import Backoff
from delaytasks.client import Client, Consumer, Job
"""

pytestmark = pytest.mark.xdist_group("packaging")  # one wheel for all of them


@pytest.fixture(scope="session")
def old_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract_commit(OLD_COMMIT, tmp_path_factory.mktemp("old") / "tree")


@pytest.fixture(scope="session")
def old_installed(old_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_wheel(build_wheel(old_tree), tmp_path_factory.mktemp("old-installed"))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Django's settings for an empty database."""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        server.make_database("upgrade")
        return {"ENGINE": "django.db.backends.postgresql", "NAME": "upgrade", "CONN_MAX_AGE": 600, **server.settings}
    options = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"}
    name = str(tmp_path / "db.sqlite3")
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": {"timeout": 30, **options}}


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def releases(
    old_installed: Path, installed: Path, database: dict[str, Any], redis: RedisServer, tmp_path: Path
) -> Iterator[tuple[Release, Release]]:
    """The old and the new release."""
    environment = {"PARCELS_DATABASE": json.dumps(database), "PARCELS_REDIS": f"redis://127.0.0.1:{redis.port}"}
    old = Release("old", "new", old_installed, tmp_path, environment)
    new = Release("new", "old", installed, tmp_path, environment)
    try:
        yield old, new
    finally:
        for release in (old, new):
            release.kill()
            for name, log in release.logs().items():
                print(f"--- {name}:\n{log[-4000:]}")  # pytest shows it if the test failed


def test_a_site_upgrades_with_jobs_pending_and_both_releases_running(
    releases: tuple[Release, Release], redis: RedisServer, tmp_path: Path
) -> None:
    old, new = releases
    site = Site(old, new, tmp_path)
    site.run_the_old_release()
    assert keys_with_pickled_classes(redis), "The old release cached no pickled class of its own."
    site.migrate_and_start_the_new_release()
    site.finish_the_old_workers_job()
    site.consume_each_others_messages()
    site.change_each_others_jobs()
    site.serve_http_side_by_side()
    site.read_each_others_caches()
    site.end_letters("beside", old, new)
    site.await_the_load()
    site.stop_the_old_release()
    site.end_letters("after", new)
    site.roll_back()
    site.assert_each_job_ended_once_and_none_started_early()
    site.assert_commands_and_pages_show_the_jobs()
    site.assert_equal_outcomes_have_the_same_text()
    assert_logs_are_clean(old, new)


def keys_with_pickled_classes(redis: RedisServer) -> list[bytes]:
    """Return the cache keys whose values name modules of delaytasks."""
    with closing(redis.client(2, decode_responses=False)) as client:
        keys = [key for key in client.scan_iter() if client.type(key) == b"string"]
        return [key for key in keys if b"delaytasks" in (client.get(key) or b"")]


def assert_logs_are_clean(*releases: Release) -> None:
    for release in releases:
        for name, log in release.logs().items():
            errors = [
                line
                for line in log.splitlines()
                if re.search(r"Traceback|unregistered task|(ERROR|CRITICAL)(?!.*\] dead topic=)", line)
            ]
            assert not errors, f"{name}'s log:\n" + "\n".join(errors)


def test_the_imports_documented_by_the_old_release_still_work(installed: Path, tmp_path: Path) -> None:
    run(sys.executable, "-c", DOCUMENTED_IMPORTS, cwd=tmp_path, PYTHONPATH=str(installed))
