"""The directory of a worker's counters outlives a worker that was killed, until the next one starts."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from delaytasks.celery import metric_files, metrics_server
from delaytasks.monitoring import prometheus
from tests.support.forks import record_blocks


@pytest.fixture
def killed_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process with a directory of counters, killed at the end of the test at the latest."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        metrics_server.make_directory()
        os.write(writer, b"!")
        signal.pause()
        os._exit(0)
    os.read(reader, 1)
    yield child
    os.close(reader)
    os.close(writer)


def test_a_worker_removes_the_directories_of_killed_ones_and_of_no_other(killed_worker: int, tmp_path: Path) -> None:
    (tmp_path / "delaytasks-metrics-of-an-earlier-version").mkdir()
    (tmp_path / "another-directory").mkdir()
    (theirs,) = (path for path in tmp_path.glob("delaytasks-metrics-*") if (path / "lock").exists())
    first = metrics_server.make_directory()
    assert theirs.exists()
    assert Path(first).exists()

    os.kill(killed_worker, signal.SIGKILL)
    os.waitpid(killed_worker, 0)
    second = metrics_server.make_directory()
    assert not theirs.exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        "delaytasks-metrics-of-an-earlier-version", "another-directory", Path(first).name, Path(second).name,
    }  # fmt: skip


A_SITE_WITH_METRICS = """
import django
from django.conf import settings
from prometheus_client import Counter, generate_latest

ORDERS = Counter("shop_orders", "Orders", ["country"])
settings.DELAYTASKS["METRICS_PORT"] = 9808
django.setup()
from delaytasks.celery import metrics_server

metrics_server.prepare()
from delaytasks.monitoring import prometheus

prometheus.OUTCOMES[prometheus.Outcome.FINISHED].labels("of.a.test").inc()
ORDERS.labels("de").inc()
print(generate_latest(prometheus.make_process_registry()).decode())
"""


def test_attempts_are_counted_if_the_site_has_imported_the_library_before() -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", A_SITE_WITH_METRICS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert 'delaytasks_finished_total{topic="of.a.test"} 1.0' in done.stdout
    assert 'shop_orders_total{country="de"} 1.0' in done.stdout
    assert "metrics: prometheus_client was imported before" in done.stderr


def test_a_worker_that_was_restarted_by_a_signal_has_a_new_directory() -> None:
    """Celery starts the new program in the same process, so that the environment stays and the lock does not."""
    former = f"{os.sep}tmp{os.sep}{metrics_server.PREFIX}former"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(Path.cwd()),
                   metrics_server.VARIABLE: former}  # fmt: skip
    show = "import os; print('directory', os.environ['PROMETHEUS_MULTIPROC_DIR'])\n"
    twice = f"{A_SITE_WITH_METRICS}{show}metrics_server.prepare()\n{show}"
    done = subprocess.run([sys.executable, "-c", twice], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("directory "))
    assert first != former
    assert first == second, "another worker of the same process"


@pytest.mark.parametrize(("own", "merged"), [("/a/directory", ["/a/directory"]), ("", [])], ids=["own", "given"])
def test_a_scrape_merges_the_workers_own_files_and_keeps_the_pool_from_forking(monkeypatch, own, merged) -> None:
    calls: list[str] = []
    delays_forks = record_blocks(monkeypatch, metrics_server)
    scraped = SimpleNamespace(collect=lambda: [delays_forks()])
    monkeypatch.setattr(metric_files, "merge_ended", calls.append)
    monkeypatch.setattr(metrics_server._directories, "own", own)
    monkeypatch.setattr(prometheus, "make_process_registry", lambda: scraped)
    monkeypatch.setattr(prometheus, "JobCollector", lambda: scraped)
    assert list(metrics_server._Registry().collect()) == [True, True]
    assert (calls, delays_forks()) == (merged, False)


def test_a_scrape_whose_database_is_silent_does_not_stop_the_next_one(monkeypatch) -> None:
    registry = metrics_server._Registry()
    waiting, answered = threading.Event(), threading.Event()

    class Silent:
        def collect(self) -> list[int]:
            waiting.set()
            answered.wait(60)
            return []

    class Counts:
        def collect(self) -> list[str]:
            return ["count"]

    class Empty:
        def collect(self) -> list[int]:
            return []

    monkeypatch.setattr(prometheus, "make_process_registry", Counts)
    monkeypatch.setattr(prometheus, "JobCollector", Silent)
    first = threading.Thread(target=lambda: list(registry.collect()), daemon=True)
    first.start()
    assert waiting.wait(60)
    monkeypatch.setattr(prometheus, "JobCollector", Empty)
    found: list[str] = []
    second = threading.Thread(target=lambda: found.extend(registry.collect()), daemon=True)
    second.start()
    second.join(10)
    assert (found, answered.is_set()) == (["count"], False)
    answered.set()
    first.join(60)
