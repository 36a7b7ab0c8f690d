"""Run the tests on SQLite and on PostgreSQL at the same time: `python .ci/test_passes.py COMMAND OF PYTEST...`.

The output of a pass is printed when it ends; until then a line a minute says how far each of them is. The last lines
are the result of each pass. Exit code: 0 if both passed, otherwise 1. A pass may have none of the selected tests, but
not both.

With PYTEST_WORKERS=0 the passes run one after the other and have the terminal, for a debugger.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, NoReturn

DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}  # DELAYTASKS_TEST_DB -> its name
NEWS_SECONDS = 60
WIDTH = 79
NO_TESTS = 5  # pytest's exit code


def environment(database: str) -> Mapping[str, str]:
    """Return the environment of a pass. What pytest and Hypothesis remember is kept apart from the other pass's."""
    kept = {"HYPOTHESIS_STORAGE_DIRECTORY": f".hypothesis/{database}"}
    return {**os.environ, **kept, "DELAYTASKS_TEST_DB": database}


class Pass:
    """One run of pytest on one database, whose output goes to a file."""

    def __init__(self, database: str, command: list[str], output: Path) -> None:
        self.name, self.output, self.began = DATABASES[database], output, time.monotonic()
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "-o", f"cache_dir=.pytest_cache/{database}"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment(database),
            )  # fmt: skip
        self.seconds = 0.0

    def ended(self) -> bool:
        """Return whether the pass has ended since the last call that returned True."""
        if self.seconds or self.process.poll() is None:
            return False
        self.seconds = time.monotonic() - self.began
        return True

    def last_line(self) -> str:
        lines = self.output.read_text(errors="replace").split("\n")
        return next((line.strip(" =") for line in reversed(lines) if line.strip(" =")), "nothing yet")

    def write_output(self, out: IO[str]) -> None:
        out.write(f"\n{f' {self.name} ':#^{WIDTH}}\n\n{self.output.read_text(errors='replace')}\n")
        out.flush()

    def result(self) -> str:
        """Return the last line of `make test` about this pass."""
        word = {0: "passed", NO_TESTS: "no test"}.get(self.process.returncode, "FAILED")
        return f"{word} on {self.name} after {minutes(self.seconds)}: {self.last_line()}"


def passed(codes: Iterable[int]) -> bool:
    """Return whether no pass has failed, by their exit codes, and at least one had tests."""
    return set(codes) in ({0}, {0, NO_TESTS})


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02} min"


def run_at_once(command: list[str], folder: Path, out: IO[str]) -> bool:
    """Run both passes. Return whether both passed."""
    passes = [Pass(database, command, folder / database) for database in DATABASES]
    try:
        news_at = time.monotonic() + NEWS_SECONDS
        while not all(each.seconds for each in passes):
            for each in passes:
                if each.ended():
                    each.write_output(out)
            if time.monotonic() > news_at:
                news_at += NEWS_SECONDS
                running = (each for each in passes if not each.seconds)
                out.write("".join(f"{each.name:<10} {each.last_line()[-WIDTH:]}\n" for each in running))
                out.flush()
            time.sleep(0.1)
    finally:
        for each in passes:
            if each.process.poll() is None:
                each.process.terminate()
                each.process.wait()
    out.write("".join(f"{each.result()}\n" for each in passes))
    return passed(each.process.returncode for each in passes)


def run_in_turn(command: list[str]) -> bool:
    """Run one pass after the other in this terminal. Return whether both passed."""
    return passed([subprocess.run(command, env=environment(database)).returncode for database in DATABASES])


def stop(*_: object) -> NoReturn:
    raise SystemExit(1)


def main() -> int:
    signal.signal(signal.SIGTERM, stop)
    command = sys.argv[1:]
    if os.environ.get("PYTEST_WORKERS") == "0":
        return 0 if run_in_turn(command) else 1
    with tempfile.TemporaryDirectory(prefix="delaytasks-test-") as folder:
        return 0 if run_at_once(command, Path(folder), sys.stdout) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
