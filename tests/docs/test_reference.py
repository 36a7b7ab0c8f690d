"""The documents agree with the code: the reference is complete, and links and paths exist."""

import ast
import inspect
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from django.dispatch import Signal

import delaytasks
from delaytasks import exceptions, signals
from delaytasks.api.exceptions import PROBLEMS
from delaytasks.conf import Settings
from delaytasks.management.commands.delaytasks import VERBS
from delaytasks.management.subcommands import schedules, timeouts
from tests.support.ci_scripts import load

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
ROW = re.compile(r"^\| (`[A-Z_`, ]+`) \| (.*?) \|", re.MULTILINE)
HEADING = re.compile(r"^#+ `([\w.() -]+)`$", re.MULTILINE)
LAYER_ROW = re.compile(r"^\| (\d*) *\| (`.+?`) \|", re.MULTILINE)
FORMER = {"beat", "bootsteps", "forward"}  # former import paths, which the page names elsewhere
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md")})
OUTDATED = "docs/reference/{} does not match the code: run `make reference` and commit the result."


def first_column(page: str) -> set[str]:
    """Return the code spans in the first column of a page's tables."""
    return set(re.findall(r"^\| `([^`]+)` \|", (REFERENCE / page).read_text(), re.MULTILINE))


# -- Problems over HTTP -------------------------------------------------------------------------


def test_the_reference_has_the_type_of_each_problem():
    assert {*PROBLEMS, "key-is-live", "body-too-large", "lease-lost"} <= first_column("http.md")


# -- Settings -----------------------------------------------------------------------------------


def documented_defaults() -> dict[str, str]:
    """Return each setting's default from the table of the reference. A row may have several settings."""
    text = (REFERENCE / "settings.md").read_text().split("\n## ")[0]
    defaults_by_name = {}
    for names_cell, defaults in ROW.findall(text):
        names = [name.strip().strip("`") for name in names_cell.split(",")]
        defaults_by_name |= dict(zip(names, defaults.split(", ") if len(names) > 1 else [defaults], strict=True))
    return defaults_by_name


def test_the_reference_has_every_setting_and_no_other():
    assert set(documented_defaults()) == {field.name.upper() for field in fields(Settings)}


def test_documented_defaults_match_the_settings():
    documented = documented_defaults()
    for field in fields(Settings):
        default, text = field.default, documented[field.name.upper()].strip("`").strip('"')
        if isinstance(default, bool) or default is MISSING:
            assert text in (str(default), "{}"), field.name
        elif isinstance(default, tuple):
            assert tuple(text.split(", ")) == default, field.name
        elif isinstance(default, int | float):
            assert text == "ten years" or float(text) == default, field.name
        else:
            assert text == (default or "none"), field.name


# -- Checks, signals, exceptions, commands, names -----------------------------------------------


def test_the_reference_has_every_check_and_no_other():
    sources = "".join(path.read_text() for path in (ROOT / "delaytasks").rglob("*.py"))
    assert first_column("checks.md") == set(re.findall(r'"(delaytasks\.[EWI]\d{3})"', sources))


def test_the_reference_has_every_signal_and_no_other():
    assert first_column("signals.md") == {name for name, each in vars(signals).items() if isinstance(each, Signal)}


def test_the_reference_has_every_exception_and_no_other():
    defined = {
        name
        for name, each in vars(exceptions).items()
        if inspect.isclass(each) and each.__module__ == exceptions.__name__
    }
    assert first_column("exceptions.md") == defined


def test_the_reference_has_every_command():
    headings = set(HEADING.findall((REFERENCE / "commands.md").read_text()))
    assert {f"delaytasks {name}" for name in VERBS} <= headings


@pytest.mark.parametrize("actions", [schedules.ACTIONS, timeouts.ACTIONS])
def test_the_reference_has_every_action_of_a_command(actions):
    assert "| `" + "\\|".join(actions) + "` |" in (REFERENCE / "commands.md").read_text()


def test_the_reference_has_every_public_name_and_the_running_job():
    headings = set(HEADING.findall((REFERENCE / "python.md").read_text()))
    assert set(delaytasks.__all__) <= headings
    assert {"RunningJob", "touch()", "finishing()", "delaytasks.celery.install"} <= headings
    assert any(heading.endswith(".schedule_unique") for heading in headings)
    assert {f"delaytasks.testing.{name}" for name in ("Timeouts", "TimeoutsTestMixin", "running_job")} <= headings


@pytest.mark.parametrize("name", ["python.md", "exceptions.md", "commands.md", "http.md"])
def test_a_generated_page_is_up_to_date(name):
    assert (REFERENCE / name).read_text() == load("reference").pages()[name], OUTDATED.format(name)


# -- Code ---------------------------------------------------------------------------------------

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_of_a_page_is_valid_syntax(page):
    if page == REFERENCE / "python.md":  # its blocks are signatures without a body
        return
    for block in BLOCK.findall(page.read_text()):
        ast.parse(block)


# -- Packages and paths -------------------------------------------------------------------------


def test_how_it_runs_has_each_package_and_module_in_its_layer():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [set(re.findall(r"\w+", layer)) - FORMER for layer in reversed(contract["layers"])]
    documented: list[set[str]] = []
    for number, names in LAYER_ROW.findall((DOCS / "explanation" / "how-it-runs.md").read_text()):
        documented += [set()] if number else []
        documented[-1] |= set(re.findall(r"`(\w+)/?`", names))
    assert documented == layers


def test_how_it_runs_names_the_files_of_a_due_job_in_order():
    text = (DOCS / "explanation" / "how-it-runs.md").read_text()
    files = ["worker/mover.py", "mirror/redis/lua/promote_due.lua", "worker/dispatch.py", "worker/runner.py"]
    assert all((ROOT / "delaytasks" / file).is_file() for file in files)
    positions = [text.index(f"`{file}`") for file in files]
    assert positions == sorted(positions)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_path_of_a_page_exists(page):
    for path in re.findall(r"`((?:delaytasks|project|tests|benchmarks)/[\w/.-]+)`", page.read_text()):
        assert (ROOT / path).exists(), f"{path} does not exist"


def test_the_readme_has_the_version_and_its_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = dict(each.split(">=") for each in project["dependencies"] if each.startswith(("Django>=", "celery>=")))
    required["Python"] = project["requires-python"].removeprefix(">=")
    text = (ROOT / "README.md").read_text()
    assert f"\nVersion {delaytasks.__version__}, " in text
    assert all(f" {name.capitalize()} {version}+" in text for name, version in required.items())
    pinned = re.findall(r"^(Django|celery)==(\d+\.\d+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    tested = text.partition("Tested with ")[2].partition(".\n")[0]
    assert all(f"{name.capitalize()} {version}" in tested for name, version in pinned)


def test_the_readme_has_the_numbers_of_the_published_trials():
    results = (DOCS / "explanation" / "promises.md").read_text()
    totals = re.findall(r"^\| all of it \| (\d+)[^|]* \| ([\d,]+) \|", results, re.MULTILINE)
    days = re.findall(r"^\*\*\w+\*\*, (\d{4}-\d\d-\d\d), seed", results, re.MULTILINE)
    trials, jobs = (sum(int(each.replace(",", "")) for each in column) for column in zip(*totals, strict=True))
    sentence = re.compile(r"\[(\d+) trials\].*?none of ([\d,]+) jobs.*?\(([\d-]+)\)", re.DOTALL)
    found = sentence.search((ROOT / "README.md").read_text())
    assert found is not None
    assert found.groups() == (str(trials), f"{jobs:,}", max(days))


def test_the_page_about_upgrades_says_what_the_newest_migration_costs():
    newest = max(path.name[:4] for path in (ROOT / "delaytasks" / "migrations").glob("[0-9]*.py"))
    assert newest in (DOCS / "howto" / "upgrade.md").read_text()


# -- Links --------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_has_a_target(page):
    for link in LINK.findall(page.read_text()):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} does not exist"
        assert not anchor or anchor in anchors(target), f"{link}: {target.name} has no such heading"
