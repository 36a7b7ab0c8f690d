"""The pytest plugin in a project of its own, and what it costs where it is not used."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{path}", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def test_the_plugin_is_an_entry_point_of_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"delaytasks": "delaytasks.testing.plugin"}


def test_these_tests_run_where_the_package_is_installed_too(tmp_path: Path) -> None:
    """`pip install` of a checkout leaves an .egg-info there, whose entry point pytest finds."""
    (tmp_path / "delaytasks.egg-info").mkdir()
    (tmp_path / "delaytasks.egg-info" / "PKG-INFO").write_text("Name: delaytasks\nVersion: 0\n")
    (tmp_path / "delaytasks.egg-info" / "entry_points.txt").write_text(
        "[pytest11]\ndelaytasks = delaytasks.testing.plugin\n"
    )
    done = run("-m", "pytest", "--collect-only", "-q", "tests/testing/test_plugin.py", cwd=ROOT, path=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_loading_the_plugin_loads_neither_django_nor_the_kit(tmp_path: Path) -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import delaytasks.testing.plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    assert run("-c", program, cwd=tmp_path).stdout.strip() == str(
        ["delaytasks", "delaytasks.testing", "delaytasks.testing.plugin"]
    )


def test_a_project_without_django_runs_its_tests_and_hears_of_the_fixture_only_when_it_asks(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\ndef test_kit(timeouts): pass\n")
    arguments = ["-m", "pytest", "-q", "-p", "no:django", "-p", "no:cacheprovider", "-p", "delaytasks.testing.plugin"]
    done = run(*arguments, cwd=tmp_path)
    assert "needs pytest-django" in done.stdout
    assert "1 passed, 1 error" in done.stdout


def run_kit(tmp_path: Path, tests: str) -> str:
    """Run tests in a project that has pytest-django. Return pytest's output."""
    (tmp_path / "conf.py").write_text(
        "SECRET_KEY = 'x'\nUSE_TZ = True\nINSTALLED_APPS = ['delaytasks']\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n"
        "DELAYTASKS = {'REDIS_URL': 'redis://127.0.0.1:1/0'}\n"  # nobody is there, and nobody asks
    )
    (tmp_path / "test_kit.py").write_text(tests)
    done = run(
        "-m", "pytest", "-q", "--strict-markers", "--ds=conf", "-p", "no:cacheprovider",
        "-p", "delaytasks.testing.plugin",
        cwd=tmp_path, path=str(tmp_path),
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_project_with_pytest_django_uses_the_fixture_without_a_mark(tmp_path: Path) -> None:
    output = run_kit(
        tmp_path,
        "from datetime import timedelta\n"
        "from delaytasks import handler, schedule\n"
        "done = []\n"
        "@handler('t')\n"
        "def note(job):\n    done.append(job.key)\n"
        "def test_kit(timeouts):\n"
        "    note.schedule('order:1', delay=timedelta(days=900))\n"
        "    assert timeouts.advance(days=900).outcomes == {'finished': 1}\n"
        "    assert done == ['order:1']\n",
    )
    assert "1 passed" in output, output


def test_a_mark_with_an_argument_that_has_no_name_is_refused(tmp_path: Path) -> None:
    """Ignored, the test would run at another time than it says."""
    output = run_kit(
        tmp_path,
        "from datetime import UTC, datetime\n"
        "import pytest\n"
        "@pytest.mark.timeouts(datetime(2030, 1, 1, tzinfo=UTC))\n"
        "def test_kit(timeouts): pass\n",
    )
    assert "TypeError: Timeouts.__init__() takes 1 positional argument" in output
    assert "1 error" in output
