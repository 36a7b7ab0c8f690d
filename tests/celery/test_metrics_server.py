"""The directory of a worker's counters outlives a worker that was killed, until the next one starts."""

import os
import signal
from pathlib import Path

import pytest

from delaytasks.celery import metrics_server


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
