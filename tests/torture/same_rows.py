"""Play random histories in the test kit and with real workers, and compare the rows that they leave.

    python -m tests.torture.same_rows [--histories 500] [--at-once 50] [--unit 1] [--database postgres|sqlite]

Beat and two workers run as processes of their own, with a broker and a Redis. Compared are topic, key, state, failures
and attempts of each job, and the outcomes of its events in their order; no run may be earlier than in the kit.
Histories are played in real time, `--at-once` together. A history in which a run was so late that a caller's next act
may have come before it shows nothing, and is played again, with fewer beside it. On a slow machine, a longer `--unit`
of time leaves more room. Exit status 1 if rows differ, or if a history could not be compared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .declared.player import DIFFERENT, LATE, SAME

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

SETTINGS = "tests.torture.declared.settings"
ROUNDS = 6  # of one history until it is given up; each with half as many at once


@dataclass
class Result:
    same: int = 0
    jobs: int = 0
    events: int = 0
    late_ms: int = 0
    broken: list[str] = field(default_factory=list)

    def take(self, played: Sequence[dict[str, Any]]) -> None:
        for each in played:
            if each["result"] == SAME:
                self.same += 1
                self.jobs, self.events = self.jobs + each["jobs"], self.events + each["events"]
                self.late_ms = max(self.late_ms, each["late_ms"])
            elif each["result"] == DIFFERENT:
                self.broken.append(f"history {each['seed']}\n  kit      {each['kit']}\n  workers  {each['workers']}")

    def line(self) -> str:
        return (
            f"{self.same} histories left the same rows: {self.jobs} jobs with {self.events} events, at most "
            f"{self.late_ms} ms later than in the kit; {len(self.broken)} differ"
        )


def play(arena: Any, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Play histories, all at once. Return what the player says of each."""
    command = [sys.executable, "-m", "tests.torture.declared.player", *map(str, seeds)]
    done = subprocess.run(command, env=arena.env, cwd=arena.directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{arena.report()}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def run(arena: Any, seeds: Sequence[int], at_once: int) -> Result:
    """Play each history until it can be compared, at most ROUNDS times. `arena` is populated."""
    result, left = Result(), list(seeds)
    for turn in range(ROUNDS):
        late: list[int] = []
        for part in batched(left, max(1, at_once >> turn)):
            played = play(arena, part)
            result.take(played)
            late += [each["seed"] for each in played if each["result"] == LATE]
            print(f"{result.line()}, {len(late)} to be played again", flush=True)
        left = late
    result.broken += [f"history {seed}: could not be compared in {ROUNDS} rounds" for seed in left]
    return result


def batched(seeds: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(seeds), size):
        yield seeds[start : start + size]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.same_rows", description=__doc__.split("\n")[0])
    parser.add_argument("--histories", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=50, help="how many are played together")
    parser.add_argument("--first", type=int, default=0, help="seed of the first history")
    parser.add_argument("--unit", type=int, default=1, help="seconds between two times at which something is due")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    options = parser.parse_args()
    os.environ["DELAYTASKS_TEST_DB"] = options.database
    import django

    django.setup()
    from .environment import arena

    began, seeds = time.monotonic(), range(options.first, options.first + options.histories)
    with (
        tempfile.TemporaryDirectory(prefix="same-rows-") as directory,
        arena(
            Path(directory), database=options.database, settings=SETTINGS, HISTORY_UNIT=str(options.unit)
        ) as installation,
    ):
        set_up(installation)
        result = run(installation, seeds, options.at_once)
    print("\n".join([result.line(), *(f"BROKEN  {each}" for each in result.broken)]))
    print(f"{time.monotonic() - began:.0f} s on {options.database}")
    return 1 if result.broken else 0


def set_up(arena: Any) -> None:
    """Start the workers, and put the declared timeout into force."""
    arena.manage("delaytasks", "timeouts", "apply", "--overdue", "run")
    arena.populate(workers=2, consumers=0)


if __name__ == "__main__":
    sys.exit(main())
