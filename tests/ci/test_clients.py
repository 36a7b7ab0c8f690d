"""`make clients` on a machine without node, PHP or Go, or without a network."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support import ci_scripts

clients = ci_scripts.load("clients")


@pytest.mark.parametrize(
    ("language", "cure"),
    {
        "TypeScript": "node is not installed: apt-get install nodejs npm",
        "PHP": "php is not installed: apt-get install php-cli php-mbstring php-guzzlehttp-guzzle",
        "Go": "go is not installed: apt-get install golang-go",
    }.items(),
)
def test_without_a_program_the_reason_and_the_cure_are_named(
    language: str, cure: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(clients.Missing, match=cure):
        clients.GENERATORS[language](tmp_path)


def test_php_without_guzzle_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    php = tmp_path / "php"
    php.write_text("#!/bin/sh\nexit 1\n")
    php.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(clients.Missing, match="PHP has no Guzzle or no mbstring: apt-get install php-cli"):
        clients.php(tmp_path)


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program that tests let fail, in place of npm."""
    program = tmp_path / "npm"
    monkeypatch.setattr(clients, "NPM_CI", [str(program)])
    monkeypatch.setattr(shutil, "which", lambda program: program)
    return program


def fails(program: Path, code: str) -> None:
    program.write_text(f"#!/bin/sh\necho 'npm error code {code}' >&2\nexit 1\n")
    program.chmod(0o700)


def test_without_a_network_the_reason_is_named(npm: Path, tmp_path: Path) -> None:
    fails(npm, "ECONNREFUSED")
    with pytest.raises(clients.Missing, match=r"without a network \(ECONNREFUSED\)"):
        clients.typescript(tmp_path)


def test_a_package_that_is_not_the_pinned_one_is_no_missing_network(npm: Path, tmp_path: Path) -> None:
    fails(npm, "EINTEGRITY")
    with pytest.raises(clients.Failed, match="EINTEGRITY"):
        clients.typescript(tmp_path)
