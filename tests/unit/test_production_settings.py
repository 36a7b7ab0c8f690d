"""The project's settings as production has them: nothing for `check --deploy` to say, secrets from the environment."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEY = "of a test, and long enough to please those who count: 0123456789 abcdefghijklmnop"
SECRETS = re.compile(r"(?i)(secret_key|password|api_key|token)\w*\s*=\s*[\"'][^\"'{}%<>\s]{8,}[\"']")


def check(tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`manage.py check --deploy` of a production that has these variables."""
    command = [sys.executable, str(ROOT / "manage.py"), "check", "--deploy", "--fail-level=INFO"]
    environment = {
        "PATH": os.environ["PATH"], "VAR_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "project.settings",
        "ALLOWED_HOSTS": "shop.example", "REDIS_URL": "redis://127.0.0.1:1/0",
    }  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, env=environment | env, cwd=tmp_path, check=False)


def test_check_deploy_has_nothing_to_say(tmp_path: Path) -> None:
    done = check(tmp_path, HTTPS="1", SECRET_KEY=KEY, DATABASE_URL="postgres://shop@db.example/shop")
    # The Redis of this test does not answer: that is the one thing which only production itself can put right.
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("?:")]
    assert [line for line in said if "delaytasks.W005" not in line] == [], done.stderr


def test_production_does_not_start_without_a_key_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("of the laptop")
    done = check(tmp_path, HTTPS="1")
    assert done.returncode != 0
    assert "takes its SECRET_KEY from the environment" in done.stderr


@pytest.mark.parametrize("folder", ["project", "delaytasks"])
def test_no_secret_is_written_into_the_sources(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / folder).rglob("*.py")
        for match in [SECRETS.search(path.read_text())]
        if match
    ]
    assert found == []
