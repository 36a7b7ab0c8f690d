"""The audit of dependencies with each answer that pip-audit can give."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import ci_scripts

audit = ci_scripts.load("audit")

ROOT = Path(__file__).parents[2]
CLEAN = {"name": "django", "version": "5.2.19", "vulns": []}
AFFECTED = {"name": "django", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.0.1"]}]}
SKIPPED = {"name": "django", "skip_reason": "not found"}


def test_no_advisory_is_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.judge([CLEAN]) == 0
    assert "1 of 1 packages" in capsys.readouterr().out


def test_a_package_that_was_not_looked_up_is_no_pass_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.judge([CLEAN, SKIPPED | {"name": "own"}]) == 3
    assert "NOT RUN: the audit of dependencies: no answer about 1 packages: own" in capsys.readouterr().err


def test_an_advisory_fails_the_build_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.judge([CLEAN, AFFECTED]) == 1
    assert "django 1.0: PYSEC-1, fixed in 1.0.1" in capsys.readouterr().out


def test_an_accepted_advisory_does_not_fail_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_without_the_advisory_database_the_audit_is_not_a_pass(
    answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: Any, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main() == 3
    assert "NOT RUN: the audit of dependencies" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "status", "is_told"), [(0, 0, False), (1, 2, False), (3, 0, True)])
def test_check_goes_on_without_advisories_and_its_last_line_says_so(
    code: int, status: int, is_told: bool, tmp_path: Path
) -> None:
    rules = (ROOT / ".ci/test.mk").read_text()
    recipe = re.search(r"^audit-if-possible:.*\n((?:\t.*\n)+)", rules, re.MULTILINE)
    last = re.search(r"^check:.*\n((?:\t.*\n)+)", rules, re.MULTILINE)
    assert recipe is not None
    assert last is not None
    makefile = tmp_path / "Makefile"
    variables = f"VENV = {tmp_path}\nVENV_PYTHON = sh -c 'exit {code}' --\n"
    makefile.write_text(f"{variables}check: audited\n{last[1]}audited:\n{recipe[1]}")
    done = subprocess.run(["make", "-f", makefile, "check"], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert ("PASSED, but NOT RUN: the audit of dependencies" in done.stderr) == is_told
