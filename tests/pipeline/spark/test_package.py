"""The zip for executors has every module of the pipeline, and needs nothing else of delaytasks."""

import os
import subprocess
import sys
from pathlib import Path

from delaytasks.pipeline.spark import package

PROGRAM = """
import importlib, pkgutil
import delaytasks.pipeline as whole

found = pkgutil.walk_packages(whole.__path__, "delaytasks.pipeline.")
names = [each.name for each in found if "__main__" not in each.name]
for name in names:
    print(importlib.import_module(name).__file__)
"""


def test_every_module_is_imported_from_the_zip_where_delaytasks_is_not_installed(tmp_path: Path) -> None:
    zipped = package.zipped(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, text=True, capture_output=True,
        env={"PATH": os.defpath, "PYTHONPATH": str(zipped)},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    expected = [path.relative_to(package.ROOT.parent) for path in (package.ROOT / "pipeline").rglob("*.py")]
    absent = {f"{zipped}/{path}" for path in expected if path.name != "__main__.py"} - set(imported)
    assert absent == {f"{zipped}/delaytasks/pipeline/__init__.py"}, "which is imported first"
