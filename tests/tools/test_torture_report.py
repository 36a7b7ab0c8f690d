"""The report, and that docs/explanation/promises.md has a row for each fault that there is."""

import json
from pathlib import Path
from typing import Any

import pytest

from ..torture import report
from ..torture.checker import KINDS
from ..torture.faults import load_all
from ..torture.job_histories import Violation
from ..torture.trial import Verdict

pytestmark = pytest.mark.tools

LATE = {"p50": 5, "p99": 70, "max": 1200}


def verdict(*faults: str, **fields: Any) -> Verdict:
    return Verdict(list(faults), jobs=250, begun=300, broken=2, late_ms=LATE, seconds=12.5, **fields)


def row_of(name: str, section: str) -> list[str]:
    """Return the cells after the name in the only row of that name."""
    (row,) = [line for line in section.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_document_has_exactly_one_row_for_each_fault() -> None:
    section = report.DOCUMENT.read_text().partition(report.BEGINS)[2].partition(report.ENDS)[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    expected: list[str] = []
    for database in report.DATABASES:
        known = [fault.name for fault in load_all().values() if database in fault.databases]
        expected += ["fault", *known, report.AT_ONCE, "all of it"]
    assert rows == expected


def test_a_fault_has_a_row_for_each_database(tmp_path: Path) -> None:
    name = next(iter(load_all()))
    lost = Violation("lost", "torture.once", "k1", 1, "it was scheduled, but there is no row")
    report.write([verdict(name), verdict(name), verdict(name, "another")], tmp_path, seed=1, database="postgres")
    written = report.write([verdict(name, violations=[lost])], tmp_path, seed=2, database="sqlite")
    on_postgres, on_sqlite = written.read_text().split("**SQLite**")
    assert row_of(name, on_postgres) == ["2", "500", "600", "4", *["0"] * len(KINDS), "5", "70", "1,200"]
    assert row_of(name, on_sqlite) == ["1", "250", "300", "2", "**1**", *["0"] * (len(KINDS) - 1), "5", "70", "1,200"]
    assert row_of(report.AT_ONCE, on_postgres)[:2] == ["1", "250"]
    assert row_of(report.AT_ONCE, on_sqlite)[0] == "not run"


def test_a_fault_that_was_not_run_is_marked(tmp_path: Path) -> None:
    first, second, *_ = load_all()
    missing = Verdict([first], trouble="NOT RUN: there is no rabbitmq-server here")
    section = report.write([missing], tmp_path, seed=1, database="postgres").read_text()
    assert row_of(first, section)[:2] == row_of(second, section)[:2] == ["not run", ""]
    assert not missing.ok
    assert not missing.ran


def test_a_failed_trial_is_marked_in_its_line_and_its_row(tmp_path: Path) -> None:
    name = next(iter(load_all()))
    failed = verdict(name, trouble="it could not be done")
    assert report.line(failed).startswith(f"BROKEN  {name}: 250 jobs")
    assert "it could not be done" in report.line(failed)
    section = report.write([failed], tmp_path, seed=1, database="sqlite").read_text()
    assert row_of(name, section)[0] == "1; 1 failed"


def test_the_errors_of_failed_trials_are_below_the_table(tmp_path: Path) -> None:
    one, two, *_ = load_all()
    failed = verdict(one, two, trouble="beat ended. OSError: no room\nTraceback")
    missing = Verdict([one], trouble="NOT RUN: there is no rabbitmq-server here")
    section = report.write([failed, missing, verdict(one)], tmp_path, seed=1, database="postgres").read_text()
    table, _, errors = section.rpartition("|\n")
    assert errors == f"\n- failed: {one} + {two}: beat ended. OSError: no room\n"
    assert row_of("all of it", f"{table}|")[0] == "2; 1 failed"
    assert report.write([verdict(one)], tmp_path, seed=1, database="postgres").read_text().endswith("|\n")


def test_other_json_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps([1, 2]))
    report.write([verdict("one")], tmp_path, seed=1, database="sqlite")
    assert [run["database"] for run in report.read(sorted(tmp_path.glob("*.json")))] == ["sqlite"]


def test_only_the_table_is_replaced() -> None:
    document = f"# Title\n\n{report.BEGINS}\nold\n{report.ENDS}\n\nthe end\n"
    assert report.put_into(document, "new\n") == f"# Title\n\n{report.BEGINS}\n\nnew\n\n{report.ENDS}\n\nthe end\n"
    with pytest.raises(ValueError, match="There is no"):
        report.put_into("# Title\n", "new\n")
