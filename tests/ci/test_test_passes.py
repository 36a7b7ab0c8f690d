"""`make test` runs the passes over both databases at once and shows the output and the result of each."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import wait_until

SCRIPT = Path(__file__).parents[2] / ".ci" / "test_passes.py"
# Stands for pytest: says what it was given, and waits until the other pass has begun, too.
PROGRAM = """
import os, pathlib, sys, time
database, folder = os.environ["DELAYTASKS_TEST_DB"], pathlib.Path(sys.argv[1])
(folder / database).write_text(str(os.getpid()))
deadline = time.monotonic() + float(sys.argv[2])
while len([*folder.iterdir()]) < 2:
    assert time.monotonic() < deadline, "the other pass has not begun"
    time.sleep(0.01)
print("test of", database, *sys.argv[4:], os.environ["HYPOTHESIS_STORAGE_DIRECTORY"])
print(f"== 7 passed on {database} ==")
while sys.argv[3] == "hang":
    time.sleep(0.01)
failing, _, code = sys.argv[3].partition(":")
sys.exit(int(code or 1) if failing in (database, "both") else 0)
"""


def command(folder: Path, *, seconds: int = 60, fails: str = "none") -> list[str]:
    folder.mkdir()
    return [sys.executable, str(SCRIPT), sys.executable, "-c", PROGRAM, str(folder), str(seconds), fails]


def run(command: list[str], **env: str) -> tuple[int, list[str]]:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTEST_WORKERS": "2", **env})
    return done.returncode, done.stdout.splitlines() + done.stderr.splitlines()


@pytest.mark.parametrize(
    ("fails", "code", "results"),
    [
        ("none", 0, ["passed", "passed"]),
        ("sqlite", 1, ["FAILED", "passed"]),
        ("postgres", 1, ["passed", "FAILED"]),
        ("sqlite:5", 0, ["no test", "passed"]),
        ("both:5", 1, ["no test", "no test"]),
    ],
)
def test_both_passes_run_at_once_and_the_last_lines_are_their_results(
    fails: str, code: int, results: list[str], tmp_path: Path
) -> None:
    returned, lines = run(command(tmp_path / "begun", fails=fails))

    assert returned == code, lines
    databases = [("sqlite", "SQLite"), ("postgres", "PostgreSQL")]
    for (database, name), word, line in zip(databases, results, lines[-2:], strict=True):
        assert line.startswith(f"{word} on {name} after 0:")
        assert line.endswith(f" min: 7 passed on {database}")
        heading = lines.index(f"{f' {name} ':#^79}")
        kept = f"-o cache_dir=.pytest_cache/{database} .hypothesis/{database}"
        assert lines[heading + 2 : heading + 4] == [f"test of {database} {kept}", f"== 7 passed on {database} =="]


def test_without_workers_one_pass_follows_the_other_even_if_it_fails(tmp_path: Path) -> None:
    returned, lines = run(command(tmp_path / "begun", seconds=0, fails="postgres"), PYTEST_WORKERS="0")

    assert returned == 1
    assert "the other pass has not begun" in "\n".join(lines), "SQLite's pass was alone"
    assert "== 7 passed on postgres ==" in lines


def written(folder: Path, *, count: int) -> list[int]:
    """Return the ids of the processes in the folder's files, or [] until there are so many. A new file is empty."""
    pids = [int(path.read_text() or 0) for path in folder.iterdir()]
    return pids if len(pids) == count and all(pids) else []


def test_a_run_that_is_stopped_stops_its_passes(tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    with subprocess.Popen(command(folder, fails="hang"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pids = wait_until(lambda: written(folder, count=2), seconds=30, what="both passes to begin")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
