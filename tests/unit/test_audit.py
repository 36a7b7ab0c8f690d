"""What the audit of dependencies makes of the answers that it can get."""

import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

spec = importlib.util.spec_from_file_location("audit", Path(__file__).parents[2] / ".ci" / "audit.py")
assert spec is not None
assert spec.loader is not None
audit: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(audit)

CLEAN = {"name": "django", "version": "5.2.19", "vulns": []}
AFFECTED = {"name": "django", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.0.1"]}]}
SKIPPED = {"name": "django", "skip_reason": "not found"}


def test_nothing_against_us_is_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.judge([CLEAN, SKIPPED]) == 0
    assert "1 of 2 packages" in capsys.readouterr().out


def test_an_advisory_fails_the_build_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.judge([CLEAN, AFFECTED]) == 1
    assert "django 1.0: PYSEC-1, mended in 1.0.1" in capsys.readouterr().out


def test_an_accepted_advisory_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ACCEPTED", {"PYSEC-1": "not our code path"})
    assert audit.judge([AFFECTED]) == 0


@pytest.mark.parametrize(
    "answer",
    [
        SimpleNamespace(stdout="", stderr="Traceback\nConnectionError: no route"),
        SimpleNamespace(stdout='{"dependencies": [{"name": "django", "skip_reason": "not found"}]}', stderr=""),
        subprocess.TimeoutExpired("pip-audit", 120),
    ],
)
def test_without_the_database_of_advisories_it_is_said_loudly_that_nothing_was_audited(
    answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: Any, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main() == 0
    assert "NOT RUN: the audit of dependencies" in capsys.readouterr().err
