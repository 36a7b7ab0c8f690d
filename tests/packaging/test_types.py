"""Strict type checkers, without plugins, see the public API of the installed package."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USES = Path(__file__).with_name("typed") / "uses.py"
Lines = dict[int, str]  # line of uses.py -> the checker's message

pytestmark = pytest.mark.xdist_group("packaging")


def expected() -> set[int]:
    lines = USES.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def make_venv(at: Path, *packages: str) -> Path:
    """Create a virtual environment with these packages; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(at)], check=True)
    (site,) = at.glob("lib/python*/site-packages")
    for package in packages:
        (site / package).symlink_to(_package_directory(package), target_is_directory=True)
    return at / "bin" / "python"


def _package_directory(package: str) -> Path:
    if package == "delaytasks":
        return ROOT / package
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a stub package is not importable
        return Path(str(metadata.distribution(package).locate_file(package)))
    return Path(spec.origin).parent


def output_of(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def mypy(python: Path, cwd: Path) -> Lines:
    """Run mypy without plugins or other configuration."""
    (cwd / "mypy.ini").write_text("[mypy]\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    output = output_of([*command, "--config-file", "mypy.ini", "--cache-dir", str(cwd / "cache"), "uses.py"], cwd)
    errors = re.findall(r"^(\S+?):(\d+): error: (.*)$", output, re.MULTILINE)
    assert {file for file, _, _ in errors} == {"uses.py"}, output
    return {int(number): message for _, number, message in errors}


def pyright(python: Path, cwd: Path) -> Lines:
    """Run basedpyright in pyright's strict mode."""
    settings = {"typeCheckingMode": "strict", "include": ["uses.py"], "reportUnusedExpression": "none"}
    (cwd / "pyrightconfig.json").write_text(json.dumps(settings))
    checker = str(Path(sys.executable).with_name("basedpyright"))
    diagnostics = json.loads(output_of([checker, "--outputjson", "--pythonpath", str(python)], cwd))[
        "generalDiagnostics"
    ]
    return {one["range"]["start"]["line"] + 1: one["message"] for one in diagnostics if one["severity"] == "error"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    shutil.copy(USES, tmp_path / "project")
    return tmp_path / "project"


@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.parametrize(
    "extra_packages", [(), ("django-stubs", "django_stubs_ext")], ids=["without django-stubs", "with django-stubs"]
)
def test_a_strict_checker_reports_exactly_the_wrong_uses(
    checker: Callable[[Path, Path], Lines], extra_packages: tuple[str, ...], directory: Path, tmp_path: Path
) -> None:
    errors = checker(make_venv(tmp_path / "venv", "delaytasks", "django", "asgiref", *extra_packages), directory)
    missed = expected() - errors.keys()
    false_alarms = {number: message for number, message in errors.items() if number not in expected()}
    assert (missed, false_alarms) == (set(), {})
