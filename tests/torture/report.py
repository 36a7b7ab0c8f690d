"""What the trials showed: a line for each while they run, a file for machines and a table for people at the end."""

import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .checker import KINDS
from .faults import load_all
from .trial import NOT_RUN, Verdict

Trial = dict[str, Any]  # a Verdict as it lies in the file

DOCUMENT = Path(__file__).parents[2] / "docs" / "promises.md"
BEGINS, ENDS = "<!-- measured: begins -->", "<!-- measured: ends -->"
DATABASES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
AT_ONCE = "two or three of them at once, at random"
WHY_LENGTH = 300  # characters of what went wrong in a trial


def line(verdict: Verdict) -> str:
    """A trial in a line; what was broken, below it."""
    late = ", ".join(f"{name} {ms} ms" for name, ms in verdict.late_ms.items())
    counts = f"{verdict.jobs} jobs, {verdict.broken} calls without an answer, late {late}; {verdict.seconds} s"
    head = "ok     " if verdict.ok else "not run" if not verdict.ran else "BROKEN "
    seen = [f"        {v.kind}: {v.topic} {v.key} (job {v.job}): {v.why}" for v in verdict.violations[:10]]
    if verdict.trouble:
        seen.append(f"        {verdict.trouble}")
    return "\n".join([f"{head} {' + '.join(verdict.faults)}: {counts}", *seen])


def write(verdicts: Sequence[Verdict], folder: Path, *, seed: int, database: str) -> Path:
    """The report for people, about every run in the folder: one of each database stays there until the next."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"database": database, "seed": seed, "day": f"{datetime.now(UTC):%Y-%m-%d}", "machine": _machine()}
    run = facts | {"trials": [verdict.as_dict() for verdict in verdicts]}
    (folder / f"{database}.json").write_text(json.dumps(run, indent=1))
    report = folder / "report.md"
    report.write_text(section(read(sorted(folder.glob("*.json")))))
    return report


def _machine() -> str:
    python, cores = platform.python_version(), os.cpu_count()
    return f"{cores} cores, {platform.system()} on {platform.machine()}, Python {python}"


def read(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The runs in these files; other files of JSON are left alone."""
    found = [json.loads(file.read_text()) for file in files]
    return [run for run in found if isinstance(run, dict) and "trials" in run]


# The table


def section(runs: Sequence[dict[str, Any]]) -> str:
    """What was seen in these runs, a table for each: how late a job is says more about its database than its fault."""
    return "\n".join(map(_table, runs))


def _table(run: dict[str, Any]) -> str:
    """When and where, a row for each fault there is, and why a trial failed."""
    trials = run["trials"]
    head = ["fault", "runs", "jobs", "attempts", "no answer", *KINDS, "late: half", "99%", "worst ms"]
    known = [fault.name for fault in load_all().values() if run["database"] in fault.databases]
    rows = [_row(name, [t for t in trials if t["faults"] == [name]]) for name in known]
    together = [trial for trial in trials if len(trial["faults"]) > 1]
    total = [_row(AT_ONCE, together), _row("all of it", trials)]
    failed = [_failed(trial) for trial in trials if _ran(trial) and trial["trouble"]]
    lines = [_about(run), "", _cells(head), "|" + "---|" * len(head), *rows, *total, *(["", *failed] if failed else [])]
    return "\n".join(lines) + "\n"


def _about(run: dict[str, Any]) -> str:
    return (
        f"**{DATABASES[run['database']]}**, {run['day']}, seed {run['seed']}: {len(run['trials'])} trials; "
        f"{run['machine']}"
    )


def _ran(trial: Trial) -> bool:
    return not trial["trouble"].startswith(NOT_RUN)


def _failed(trial: Trial) -> str:
    """The first line of its trouble, as an item of a list."""
    why = " ".join(trial["trouble"].split("\n")[0].split())
    return f"- failed: {' + '.join(trial['faults'])}: {why[:WHY_LENGTH]}"


def _row(name: str, trials: Sequence[Trial]) -> str:
    ran = [trial for trial in trials if _ran(trial)]
    if not ran:
        return _cells([name, "not run", *[""] * (len(KINDS) + 6)])
    broken = Counter(violation["kind"] for trial in ran for violation in trial["violations"])
    failed = sum(bool(trial["trouble"]) for trial in ran)
    worst = [max(trial["late_ms"].get(cut, 0) for trial in ran) for cut in ("p50", "p99", "max")]
    counts = [sum(trial[what] for trial in ran) for what in ("jobs", "begun", "broken")]
    return _cells(
        [
            name,
            f"{len(ran)}; {failed} failed" if failed else len(ran),
            *counts,
            *(_seen(broken[kind]) for kind in KINDS),
            *worst,
        ]
    )


def _seen(times: int) -> str:
    return f"**{times}**" if times else "0"


def _cells(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |"


def put_into(document: str, section: str) -> str:
    """The document with another section between its two marks. Raises ValueError if it has none."""
    before, _, rest = document.partition(BEGINS)
    _, mark, after = rest.partition(ENDS)
    if not mark:
        raise ValueError(f"There is no {BEGINS} ... {ENDS} in the document.")
    return f"{before}{BEGINS}\n\n{section}\n{mark}{after}"


def publish(files: Iterable[Path]) -> None:
    """Write what these runs saw into docs/promises.md."""
    DOCUMENT.write_text(put_into(DOCUMENT.read_text(), section(read(files))))
