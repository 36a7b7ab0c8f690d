"""Names that have moved still work, say what to use instead, and are announced: the policy of docs/howto/upgrade.md."""

import ast
import importlib
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import delaytasks
from delaytasks.deprecation import DelaytasksDeprecationWarning

ROOT = Path(__file__).parents[1]
RELEASES_AT_LEAST = 2  # minor versions in which a deprecated name still works


class Moved(NamedTuple):
    module: str
    name: str
    removed_in: str


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def calls_of(function: str) -> list[tuple[str, ast.Call]]:
    """Return each call of a function of delaytasks.deprecation in the package, with its module."""
    found = []
    for path in (ROOT / "delaytasks").rglob("*.py"):
        source = path.read_text()
        if f"import {function}" in source:
            calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
            found += [(module_name(path), call) for call in calls if getattr(call.func, "id", "") == function]
    return found


def exported(module: str) -> list[str]:
    """Return the module's __all__ without importing it: delaytasks.forward takes the place of the function."""
    path = ROOT.joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    assignments = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    (names,) = [each.value for each in assignments if ast.unparse(each.targets[0]) == "__all__"]
    return list(ast.literal_eval(names))


def declared() -> list[Moved]:
    found = []
    for module, call in calls_of("moved"):
        (removed_in,) = [keyword.value.value for keyword in call.keywords if isinstance(keyword.value, ast.Constant)]
        found += [Moved(module, name, str(removed_in)) for name in exported(module)]
    return sorted(found)


DECLARED = declared()
NAMES = [pytest.param(moved, id=f"{moved.module}.{moved.name}") for moved in DECLARED]


@pytest.fixture(autouse=True)
def _former_forward() -> Iterator[None]:
    """Let delaytasks.forward be the function again after a test has imported the module of that name."""
    yield
    sys.modules.pop("delaytasks.forward", None)
    vars(delaytasks).pop("forward", None)


def test_the_former_modules_are_found() -> None:
    modules = {moved.module.removeprefix("delaytasks.") for moved in DECLARED}
    assert modules == {"api.bodies", "bootsteps", "forward", "pipeline.lake", "pipeline.minutes", "pipeline.package"}


@pytest.mark.parametrize("moved", NAMES)
def test_a_moved_name_warns_where_it_is_used_and_names_its_home(moved: Moved) -> None:
    with pytest.warns(DelaytasksDeprecationWarning) as caught:
        exec(compile(f"\n\nfrom {moved.module} import {moved.name} as it", "site.py", "exec"), found := {})
    text = str(caught[-1].message)
    assert (caught[-1].filename, caught[-1].lineno) == ("site.py", 3)
    home = re.fullmatch(rf"{moved.module}\.{moved.name} is now ([\w.]+)\.{moved.name}\. The old name .*", text)
    assert home, text
    assert f"removed in delaytasks {moved.removed_in}." in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert getattr(importlib.import_module(home[1]), moved.name) is found["it"]


@pytest.mark.parametrize("moved", NAMES)
def test_a_moved_name_works_for_two_more_minor_versions(moved: Moved) -> None:
    major, minor = map(int, delaytasks.__version__.split(".")[:2])
    assert tuple(map(int, moved.removed_in.split("."))) >= (major, minor + RELEASES_AT_LEAST)


@pytest.mark.parametrize("module", sorted({moved.module for moved in DECLARED}))
def test_a_moved_name_is_announced_in_the_changelog(module: str) -> None:
    unreleased = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    _, deprecated = unreleased.split("\n### Deprecated\n")
    assert f"`{module}`" in deprecated.split("\n### ")[0]


def test_another_name_of_such_a_module_is_refused_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match=r"module 'delaytasks\.bootsteps' has no attribute 'uninstall'"):
        importlib.import_module("delaytasks.bootsteps").uninstall  # noqa: B018


def test_the_former_file_for_spark_submit_says_which_one_to_use() -> None:
    command = [sys.executable, str(ROOT / "delaytasks/pipeline/run.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False)
    assert (done.returncode, "Name one application" in done.stdout) == (2, True), done.stdout + done.stderr
    assert "is now delaytasks/pipeline/__main__.py" in done.stderr
