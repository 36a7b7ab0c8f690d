"""What the trials showed: a line for each while they run, a table and a file for machines at the end."""

import json
import platform
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from .checker import KINDS
from .trial import Verdict


def line(verdict: Verdict) -> str:
    """A trial in a line; what was broken, below it."""
    late = ", ".join(f"{name} {ms} ms" for name, ms in verdict.late_ms.items())
    head = "ok     " if verdict.ok else "BROKEN "
    said = f"{head} {' + '.join(verdict.faults)}: {verdict.jobs} jobs, {verdict.broken} calls without an answer, late {late}"
    seen = [f"        {v.kind}: {v.topic} {v.key} (job {v.job}): {v.why}" for v in verdict.violations[:10]]
    if verdict.trouble:
        seen.append(f"        {verdict.trouble}")
    return "\n".join([f"{said}; {verdict.seconds} s", *seen])


def write(verdicts: Sequence[Verdict], folder: Path, *, seed: int, database: str) -> None:
    """report.md and report.json. One row for each fault alone, one for all combinations together."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"seed": seed, "database": database, "machine": platform.platform()}
    trials = [verdict.as_dict() for verdict in verdicts]
    (folder / "report.json").write_text(json.dumps(facts | {"trials": trials}, indent=1))
    (folder / "report.md").write_text("\n".join([f"Seed {seed}, {database}.", "", *table(verdicts)]) + "\n")


def table(verdicts: Sequence[Verdict]) -> list[str]:
    rows = defaultdict(list)
    for verdict in verdicts:
        rows[verdict.faults[0] if len(verdict.faults) == 1 else "random combinations of these"].append(verdict)
    head = ["fault", "runs", "jobs", "no answer", *KINDS, "late p50", "p99", "max ms"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + [_row(name, those) for name, those in rows.items()]


def _row(name: str, those: Sequence[Verdict]) -> str:
    broken = sum((verdict.by_kind() for verdict in those), start=type(those[0].by_kind())())
    worst = [max((v.late_ms.get(cut, 0) for v in those), default=0) for cut in ("p50", "p99", "max")]
    cells = [name, len(those), sum(v.jobs for v in those), sum(v.broken for v in those)]
    if any(v.trouble for v in those):
        name += " (trouble)"
    return "| " + " | ".join(str(cell) for cell in [*cells, *(broken[kind] for kind in KINDS), *worst]) + " |"
