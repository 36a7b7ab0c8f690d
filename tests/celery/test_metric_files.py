"""The counts of ended processes are merged, and each metric keeps its value."""

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from delaytasks.celery import heartbeat, metric_files
from delaytasks.monitoring import prometheus


def ended_process() -> int:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def write(path: Path, metric: str, value: float, timestamp: float = 0.0, **labels: str) -> None:
    sample = f"{metric}_total" if path.name.startswith("counter") else f"{metric}_bucket" if "le" in labels else metric
    values = MmapedDict(str(path))
    values.write_value(mmap_key(metric, sample, list(labels), list(labels.values()), "Help."), value, timestamp)
    values.close()


def samples(directory: Path) -> dict[tuple[str, Any], float]:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The files of two processes that have ended and of one that lives."""
    first, second = ended_process(), ended_process()
    assert first != second
    for n, pid in enumerate([first, second, os.getpid()], 1):
        write(tmp_path / f"counter_{pid}.db", "done", n, topic="t")
        write(tmp_path / f"counter_{pid}.db", "done", 1, topic=f"of process {n}")
        for le in ("1.0", "+Inf"):
            write(tmp_path / f"histogram_{pid}.db", "late", n, topic="t", le=le)
    write(tmp_path / f"gauge_mostrecent_{first}.db", "drift", 7.0, 200.0, schedule="s")
    write(tmp_path / f"gauge_mostrecent_{second}.db", "drift", 5.0, 100.0, schedule="s")
    write(tmp_path / f"gauge_all_{first}.db", "memory", 9.0)
    (tmp_path / "lock").touch()
    return tmp_path


def test_ended_processes_share_files_and_no_metric_changes(directory: Path) -> None:
    before = samples(directory)
    assert before["done_total", (("topic", "t"),)] == 6
    assert before["drift", (("schedule", "s"),)] == 7
    unmerged = {path.name for path in directory.glob("gauge_all_*")}
    metric_files.merge_ended(str(directory))
    assert samples(directory) == before
    living = {f"{kind}_{os.getpid()}.db" for kind in ("counter", "histogram")}
    merged = {f"{kind}_0.db" for kind in ("counter", "histogram", "gauge_mostrecent")}
    assert {path.name for path in directory.iterdir()} == living | merged | unmerged | {"lock"}


def test_a_file_that_its_process_has_not_written_to_spoils_no_scrape(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(directory))
    for pid in (ended_process(), os.getpid()):  # the first was killed, the second has just begun to count
        (directory / f"summary_{pid}.db").touch()

    def done() -> float:
        metrics = {metric.name: metric for metric in prometheus.make_process_registry().collect()}
        return sum(sample.value for sample in metrics["done"].samples)

    assert done() == 9
    metric_files.merge_ended(str(directory))
    assert done() == 9


def test_a_process_whose_id_another_users_process_has_got_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert heartbeat.has_ended(1)


def test_a_damaged_file_adds_none_of_its_values(tmp_path: Path) -> None:
    path = tmp_path / f"counter_{ended_process()}.db"
    write(path, "done", 1, topic="t")
    write(path, "done", 1, topic="u")
    data = bytearray(path.read_bytes())
    second = data.rindex(b'["done"') - 4
    data[second : second + 4] = struct.pack("i", len(data))
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="corrupted"):
            metric_files.merge_ended(str(tmp_path))
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_that_ends_later_is_added(directory: Path) -> None:
    metric_files.merge_ended(str(directory))
    before = samples(directory)
    pid = ended_process()
    write(directory / f"counter_{pid}.db", "done", 10, topic="t")
    write(directory / f"gauge_mostrecent_{pid}.db", "drift", 3.0, 300.0, schedule="s")
    metric_files.merge_ended(str(directory))
    changes = {("done_total", (("topic", "t"),)): 16, ("drift", (("schedule", "s"),)): 3}
    assert samples(directory) == before | changes
    assert not list(directory.glob(f"*_{pid}.db"))
