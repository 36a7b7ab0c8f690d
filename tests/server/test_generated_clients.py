"""Typed clients generated from docs/openapi.yaml: strict checkers see each wrong use, and the examples run."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from delaytasks.models import Job
from delaytasks.states import State
from tests.conftest import not_run
from tests.support import ci_scripts
from tests.support.installation import World

from .conftest import EVERYTHING

clients = ci_scripts.load("clients")
# What the wrong copy of an example says instead: fields of a request, of an answer and of a typed error.
MISSPELT = {
    "delay_seconds": "delay_secs",
    "wait_seconds": "wait_secs",
    "made.result": "made.results",
    ".job_id}": ".id}",
}
MYPY_INI = """\
[mypy]
strict = true
[mypy-delaytasks_rest.*]
# As for an installed package: the generator's own client.py is not strict.
ignore_errors = true
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = clients.python(tmp_path_factory.mktemp("clients"))
    (directory / "mypy.ini").write_text(MYPY_INI)
    return directory


@pytest.fixture(scope="module")
def typescript(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return clients.typescript(tmp_path_factory.mktemp("clients"))
    except clients.Missing as reason:
        request.config.stash[not_run].add(f"the typed client in TypeScript, because {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def compiled(typescript: Path) -> tuple[set[str], set[str], str]:
    """Compile the example and its wrong copy. Return the places of what is wrong and of the errors, and the output."""
    wrong = write_wrong_copy(typescript / "rest.ts")
    done = run(["node_modules/.bin/tsc", "--pretty", "false"], typescript)
    errors = re.findall(r"^(\S+)\((\d+),\d+\): error", done.stdout, re.MULTILINE)
    return wrong, {f"{file}:{line}" for file, line in errors}, done.stdout


def write_wrong_copy(example: Path) -> set[str]:
    """Write wrong.* beside the example. Return the places of what is wrong: {"wrong.py:30", ...}."""
    text = example.read_text()
    wrong = text
    for name, misspelt in MISSPELT.items():
        assert wrong.count(name) == 1, f"{name} is {wrong.count(name)} times in {example}"
        wrong = wrong.replace(name, misspelt)
    copy = example.with_stem("wrong")
    copy.write_text(wrong)
    lines = zip(text.splitlines(), wrong.splitlines(), strict=True)
    return {f"{copy.name}:{number}" for number, (right, wrong) in enumerate(lines, 1) if right != wrong}


def run(command: list[str], directory: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_mypy_reports_exactly_the_wrong_uses_in_python(python: Path) -> None:
    wrong = write_wrong_copy(python / "rest.py")
    checker = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", f"--cache-dir={python / 'cache'}"]
    done = run([*checker, "rest.py", "wrong.py"], python)
    assert set(re.findall(r"^(\S+:\d+): error", done.stdout, re.MULTILINE)) == wrong, done
    assert len(wrong) == len(MISSPELT)


def test_tsc_reports_exactly_the_wrong_uses_in_typescript(compiled: tuple[set[str], set[str], str]) -> None:
    wrong, errors, output = compiled
    assert errors == wrong, output
    assert len(wrong) == len(MISSPELT)


@pytest.mark.parametrize("language", ["python", "typescript"])
def test_example_takes_a_job_from_its_creation_to_its_end(
    language: str, request: pytest.FixtureRequest, here: World, topic: str, make_token: Callable[..., str]
) -> None:
    directory: Path = request.getfixturevalue(language)
    if language == "typescript":
        request.getfixturevalue("compiled")
    command = {"python": [sys.executable, "rest.py"], "typescript": ["node", "rest.js"]}[language]
    env = {"DELAYTASKS_URL": f"{here.url}/api/queue/", "DELAYTASKS_TOKEN": make_token({topic: EVERYTHING})}
    done = run([*command, "order:1042"], directory, env | {"TOPIC": topic, "PATH": os.environ["PATH"]})
    job = Job.objects.get(topic=topic)
    assert (done.stdout.splitlines(), done.stderr) == (
        [
            f"created order:1042 as job {job.pk}",
            f"refused: order:1042 is live as job {job.pk}",
            "reserved order:1042, attempt 1",
            "finished order:1042: scheduled, finished",
        ],
        "",
    )
    assert (done.returncode, job.state) == (0, State.FINISHED)
