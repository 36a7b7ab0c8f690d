"""The import contracts of pyproject.toml can break, each of them, and what they cannot say is checked here."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OFFENCES = {
    "Imports point down": ("states.py", "from . import topics"),
    "The mirror does not know the database": ("mirror/client.py", "from .. import models"),
    "The database's side does not know the mirror": ("statements.py", "from .mirror import client"),
    "The mover never imports the ORM": ("mover.py", "from . import models"),
    "The states know no Django": ("states.py", "from django.utils import timezone"),
    "Only the mirror imports redis": ("mover.py", "import redis"),
    "Only the API imports the REST framework": ("worker.py", "import rest_framework"),
    "Only the pipeline imports Spark": ("worker.py", "import pyspark.sql"),
    "The pipeline knows the states, and no Django": ("pipeline/run.py", "from django.conf import settings"),
    "The app does not know the project around it": ("conf.py", "from project import settings"),
}


def lint(tree: Path) -> tuple[int, dict[str, bool], str]:
    """Exit status, contract's name -> whether it is kept, and the whole output."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"],
        cwd=tree, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    )  # fmt: skip
    said = done.stdout + done.stderr
    return done.returncode, {m[1]: m[2] == "KEPT" for m in re.finditer(r"^(.+) (KEPT|BROKEN)\b", said, re.M)}, said


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("delaytasks", "project"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_point_down(tree: Path) -> None:
    status, kept, said = lint(tree)
    assert status == 0, said
    assert kept == dict.fromkeys(OFFENCES, True), said


def test_each_import_contract_can_break(tree: Path) -> None:
    for file, line in OFFENCES.values():
        with (tree / "delaytasks" / file).open("a") as module:
            module.write(f"\n{line}\n")
    status, kept, said = lint(tree)
    assert status == 1, said
    assert kept == dict.fromkeys(OFFENCES, False), said


def test_a_module_that_no_layer_lists_is_an_error(tree: Path) -> None:
    (tree / "delaytasks" / "elsewhere.py").touch()
    status, kept, said = lint(tree)
    assert status == 1
    assert not kept["Imports point down"]
    assert "delaytasks.elsewhere" in said


def imported(source: str) -> set[str]:
    """What a module imports by an absolute name; `from a import b` counts as a.b."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def of_the_orm(names: set[str]) -> set[str]:
    return {name for name in names if f"{name}.".startswith("django.db.")}


def test_neither_the_mover_nor_the_mirror_imports_django_db() -> None:
    modules = [ROOT / "delaytasks/mover.py", *sorted((ROOT / "delaytasks/mirror").rglob("*.py"))]
    found = {str(path): of_the_orm(imported(path.read_text())) for path in modules}
    assert len(found) > 2
    assert not any(found.values()), found


def test_an_import_of_django_db_is_seen_in_every_spelling() -> None:
    source = "import django.db\nfrom django import db\nfrom django.db import models\nfrom django.core import mail"
    assert of_the_orm(imported(source)) == {"django.db", "django.db.models"}


def test_importing_delaytasks_needs_no_settings_and_loads_no_models_no_redis_and_no_celery(tmp_path: Path) -> None:
    program = (
        "import sys, delaytasks; from delaytasks import handler, Snooze, Retry;"
        "print(sorted(sys.modules.keys() & {'django.db.models', 'delaytasks.models', 'redis', 'celery'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
