"""The ledger: entries are on disk before the writer continues, and an incomplete last line is ignored."""

import json
import os
import threading
import warnings
from pathlib import Path

import pytest

from ..torture import ledger
from ..torture.ledger import Ledger

pytestmark = pytest.mark.tools


def test_an_entry_is_on_disk_before_its_writer_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    pages = Ledger(tmp_path, "caller")
    monkeypatch.setattr(os, "fsync", lambda file: seen.append(Path(f"/proc/self/fd/{file}").read_bytes()))
    pages.write("asks", n="1")
    (written,) = seen
    assert json.loads(written)["n"] == "1"


def test_entries_of_several_processes_are_read_in_chronological_order(tmp_path: Path) -> None:
    caller, handlers = Ledger(tmp_path, "caller"), Ledger(tmp_path, "handlers")
    caller.write("asks", n="1")
    handlers.write("begins", job=1)
    caller.write("answers", n="1")
    assert [entry["kind"] for entry in ledger.read(tmp_path)] == ["asks", "begins", "answers"]


def test_entries_written_together_share_the_common_fields(tmp_path: Path) -> None:
    Ledger(tmp_path, "handlers").write("begins", {"job": 1}, {"job": 2}, now_ms=7)
    first, second = ledger.read(tmp_path)
    assert (first["job"], second["job"]) == (1, 2)
    assert first["now_ms"] == second["now_ms"] == 7
    assert first["at"] == second["at"]


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    pages = Ledger(tmp_path, "caller")
    pages.write("asks", n="1")
    pages.write("answers", n="1", said="scheduled")
    (page,) = tmp_path.iterdir()
    whole = page.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        page.write_bytes(whole[:-cut])
        assert [entry["kind"] for entry in ledger.read(tmp_path)] == ["asks"]


def test_an_invalid_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "caller-1.ledger").write_text('{"kind": "asks", "at": 1}\n{"kind": "ans\n{"kind": "asks", "at": 2}\n')
    with pytest.raises(ValueError, match=r"caller-1\.ledger, line 2"):
        ledger.read(tmp_path)


def test_a_forked_child_opens_its_own_file(tmp_path: Path) -> None:
    pages = Ledger(tmp_path, "handlers")
    pages.write("begins", job=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about the test runner's threads
        child = os.fork()
    if child == 0:
        try:
            pages.write("begins", job=2)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pages.write("begins", job=3)
    assert {page.name for page in tmp_path.iterdir()} == {f"handlers-{pid}.ledger" for pid in (os.getpid(), child)}
    assert [(entry["job"], entry["pid"] == child) for entry in ledger.read(tmp_path)] == [
        (1, False), (2, True), (3, False),
    ]  # fmt: skip


def test_concurrent_threads_write_whole_lines(tmp_path: Path) -> None:
    pages = Ledger(tmp_path, "consumer")

    def write(thread: int) -> None:
        for number in range(20):
            pages.write("begins", {"job": number}, {"job": number}, thread=thread, padding="x" * 5_000)

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(tmp_path.iterdir())) == 1
    assert len(ledger.read(tmp_path)) == 4 * 20 * 2
