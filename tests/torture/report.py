"""Reports of trials: a line for each while they run; at the end a JSON file and a Markdown table."""

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

Trial = dict[str, Any]  # a Verdict as stored in the file

DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "promises.md"
BEGINS, ENDS = "<!-- measured: begins -->", "<!-- measured: ends -->"
DATABASES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
AT_ONCE = "two or three of them at once, at random"
WHY_LENGTH = 300  # characters of a trial's error


def line(verdict: Verdict) -> str:
    """Format a trial as one line, followed by its violations."""
    late = ", ".join(f"{name} {ms} ms" for name, ms in verdict.late_ms.items())
    counts = f"{verdict.jobs} jobs, {verdict.broken} calls without an answer, late {late}; {verdict.seconds} s"
    head = "ok     " if verdict.ok else "not run" if not verdict.ran else "BROKEN "
    details = [f"        {v.kind}: {v.topic} {v.key} (job {v.job}): {v.why}" for v in verdict.violations[:10]]
    if verdict.trouble:
        details.append(f"        {verdict.trouble}")
    return "\n".join([f"{head} {' + '.join(verdict.faults)}: {counts}", *details])


def write(verdicts: Sequence[Verdict], folder: Path, *, seed: int, database: str) -> Path:
    """Write the run as JSON, and a report of all runs in the folder: the latest one of each database."""
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
    """Return the runs in these files; other JSON files are ignored."""
    contents = [json.loads(file.read_text()) for file in files]
    return [run for run in contents if isinstance(run, dict) and "trials" in run]


# The table


def section(runs: Sequence[dict[str, Any]]) -> str:
    """Return a table for each run. Databases are kept apart, because lateness depends on the database."""
    return "\n".join(map(_table, runs))


def _table(run: dict[str, Any]) -> str:
    """Return the facts of the run, a row for each fault, and the errors of failed trials."""
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
    """Return the first line of the trial's error as a list item."""
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
            *(_count(broken[kind]) for kind in KINDS),
            *worst,
        ]
    )


def _count(times: int) -> str:
    return f"**{times}**" if times else "0"


def _cells(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |"


def put_into(document: str, section: str) -> str:
    """Replace the section between the two marks of the document. Raises ValueError if it has none."""
    before, _, remainder = document.partition(BEGINS)
    _, mark, after = remainder.partition(ENDS)
    if not mark:
        raise ValueError(f"There is no {BEGINS} ... {ENDS} in the document.")
    return f"{before}{BEGINS}\n\n{section}\n{mark}{after}"


def publish(files: Iterable[Path]) -> None:
    """Write what these runs saw into docs/explanation/promises.md."""
    DOCUMENT.write_text(put_into(DOCUMENT.read_text(), section(read(files))))
