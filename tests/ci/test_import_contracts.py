"""Each import contract of pyproject.toml can fail; rules that a contract cannot express are tested here."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

VIOLATIONS = {
    "Imports point down": ("states.py", "from . import handlers"),
    "The mirror does not know the database": ("mirror/redis/client.py", "from ... import models"),
    "The database's side does not know the mirror": ("db/lookups.py", "from ..mirror.redis import client"),
    "SQL is below the mirror": ("querysets.py", "from . import mirror"),
    "The mover never imports the ORM": ("worker/mover.py", "from .. import models"),
    "The states know no Django": ("states.py", "from django.utils import timezone"),
    "Only the mirror imports redis": ("worker/mover.py", "import redis"),
    "Only the API imports the REST framework": ("worker/runner.py", "import rest_framework"),
    "Only the pipeline imports Spark": ("worker/runner.py", "import pyspark.sql"),
    "The pipeline knows the states, and no Django": ("pipeline/__main__.py", "from django.conf import settings"),
    "The app does not know the project around it": ("conf.py", "from project import settings"),
}


def lint(tree: Path) -> tuple[int, dict[str, bool], str]:
    """Return the exit status, {contract: whether it is kept} and the output."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"],
        cwd=tree, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    )  # fmt: skip
    output = done.stdout + done.stderr
    kept = {m[1]: m[2] == "KEPT" for m in re.finditer(r"^(.+) (KEPT|BROKEN)\b", output, re.M)}
    return done.returncode, kept, output


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("delaytasks", "project"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_point_down(tree: Path) -> None:
    status, kept, output = lint(tree)
    assert status == 0, output
    assert kept == dict.fromkeys(VIOLATIONS, True), output


def test_each_import_contract_can_fail(tree: Path) -> None:
    for file, line in VIOLATIONS.values():
        with (tree / "delaytasks" / file).open("a") as module:
            module.write(f"\n{line}\n")
    status, kept, output = lint(tree)
    assert status == 1, output
    assert kept == dict.fromkeys(VIOLATIONS, False), output


def test_a_module_missing_in_the_layers_is_an_error(tree: Path) -> None:
    (tree / "delaytasks" / "elsewhere.py").touch()
    status, kept, output = lint(tree)
    assert status == 1
    assert not kept["Imports point down"]
    assert "delaytasks.elsewhere" in output


def imported(source: str) -> set[str]:
    """Return the absolute imports of a module; `from a import b` counts as a.b."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def orm_imports(names: set[str]) -> set[str]:
    return {name for name in names if f"{name}.".startswith("django.db.")}


def test_neither_the_mover_nor_the_mirror_imports_django_db() -> None:
    mirror = ROOT / "delaytasks" / "mirror"
    modules = [ROOT / "delaytasks/worker/mover.py", mirror / "base.py", *sorted((mirror / "redis").rglob("*.py"))]
    imports = {str(path): orm_imports(imported(path.read_text())) for path in modules}
    assert len(imports) > 2
    assert not any(imports.values()), imports


def test_an_import_of_django_db_is_found_in_every_spelling() -> None:
    source = "import django.db\nfrom django import db\nfrom django.db import models\nfrom django.core import mail"
    assert orm_imports(imported(source)) == {"django.db", "django.db.models"}


def test_importing_delaytasks_needs_no_settings_and_loads_no_models_redis_or_celery(tmp_path: Path) -> None:
    program = (
        "import sys, delaytasks; from delaytasks import handler, Snooze, Retry;"
        "print(sorted(sys.modules.keys() & {'django.db.models', 'delaytasks.models', 'redis', 'celery'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
