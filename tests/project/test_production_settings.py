"""Production settings: `check --deploy` reports nothing, and secrets come from the environment."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEY = "test key, long enough for security.W009: 0123456789 abcdefghijklmnopqrstuvwxyz"
SECRETS = re.compile(r"(?i)(secret_key|password|api_key|token)\w*\s*=\s*[\"'][^\"'{}%<>\s]{8,}[\"']")


def check(tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `manage.py check --deploy` with production settings and these environment variables."""
    command = [sys.executable, str(ROOT / "manage.py"), "check", "--deploy", "--fail-level=INFO"]
    environment = {
        "PATH": os.environ["PATH"], "VAR_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "project.settings",
        "ALLOWED_HOSTS": "shop.example", "REDIS_URL": "redis://:x@127.0.0.1:1/0",
    }  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, env=environment | env, cwd=tmp_path, check=False)


def test_check_deploy_reports_nothing(tmp_path: Path) -> None:
    completed = check(tmp_path, HTTPS="1", SECRET_KEY=KEY, DATABASE_URL="postgres://shop@db.example/shop")
    # W005 (Redis does not answer) is expected: this test has no Redis.
    problems = [line for line in (completed.stdout + completed.stderr).splitlines() if line.startswith("?:")]
    assert [line for line in problems if "delaytasks.W005" not in line] == [], completed.stderr


def test_production_does_not_start_without_its_own_secret_key(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("development key")
    completed = check(tmp_path, HTTPS="1")
    assert completed.returncode != 0
    assert "HTTPS=1 requires SECRET_KEY in the environment." in completed.stderr


@pytest.mark.parametrize("folder", ["project", "delaytasks"])
def test_no_secret_is_in_the_source_code(folder: str) -> None:
    secrets = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / folder).rglob("*.py")
        for match in [SECRETS.search(path.read_text())]
        if match
    ]
    assert secrets == []
