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
MISSPELT_IN_GO = {
    "SetDelaySeconds": "SetDelaySecs",
    "SetWaitSeconds": "SetWaitSecs",
    "made.Result": "made.Results",
    "GetJobId": "GetId",
}
# PHP reports a wrong use when it runs it: one copy of the example for each, and what PHP says.
WRONG_IN_PHP = {
    "setDelaySeconds(1)": ("setDelaySecs(1)", "undefined method Delaytasks\\Model\\NewJob::setDelaySecs()"),
    "setDelaySeconds(1": ("setDelaySeconds('1'", "must be of type ?float, string given"),
    "setWaitSeconds": ("setWaitSecs", "undefined method Delaytasks\\Model\\Reserve::setWaitSecs()"),
    "getResult": ("getResults", "undefined method Delaytasks\\Model\\MadeJob::getResults()"),
    "getJobId": ("getId", "undefined method Delaytasks\\Model\\LiveProblem::getId()"),
}
EXAMPLES = {
    "python": [sys.executable, "rest.py"],
    "typescript": ["node", "rest.js"],
    "php": ["php", "rest.php"],
    "go": ["./rest"],
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


def generated(language: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return clients.GENERATORS[language](tmp_path_factory.mktemp("clients"))
    except clients.Missing as reason:
        request.config.stash[not_run].add(f"the typed client in {language}, because {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def typescript(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated("TypeScript", request, tmp_path_factory)


@pytest.fixture(scope="module")
def php(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated("PHP", request, tmp_path_factory)


@pytest.fixture(scope="module")
def go(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, go_env: dict[str, str]) -> Path:
    """The generated package with the compiled example, which imports no other module than the standard library."""
    directory = generated("Go", request, tmp_path_factory)
    done = run(["go", "build", "-o", "rest", "rest.go"], directory, go_env)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def compiled(typescript: Path) -> tuple[set[str], set[str], str]:
    """Compile the example and its wrong copy. Return the places of what is wrong and of the errors, and the output."""
    wrong = write_wrong_copy(typescript / "rest.ts")
    done = run(["node_modules/.bin/tsc", "--pretty", "false"], typescript)
    errors = re.findall(r"^(\S+)\((\d+),\d+\): error", done.stdout, re.MULTILINE)
    return wrong, {f"{file}:{line}" for file, line in errors}, done.stdout


def write_wrong_copy(example: Path, misspellings: dict[str, str] = MISSPELT) -> set[str]:
    """Write wrong.* beside the example. Return the places of what is wrong: {"wrong.py:30", ...}."""
    text = example.read_text()
    wrong = text
    for name, misspelt in misspellings.items():
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


def test_compiler_reports_exactly_the_wrong_uses_in_go(go: Path, go_env: dict[str, str]) -> None:
    wrong = write_wrong_copy(go / "rest.go", MISSPELT_IN_GO)
    done = run(["go", "build", "wrong.go"], go, go_env)
    assert set(re.findall(r"^\./(\S+:\d+):\d+: ", done.stderr, re.MULTILINE)) == wrong, done
    assert len(wrong) == len(MISSPELT_IN_GO)


def test_every_generated_php_file_loads(php: Path) -> None:
    files = sorted(str(path) for path in (php / "delaytasks").rglob("*.php"))
    program = 'require "vendor/autoload.php"; foreach (array_slice($argv, 1) as $file) { require_once $file; }'
    done = run(["php", "-d", "display_errors=stderr", "-r", program, *files], php)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert len(files) > 50


@pytest.fixture
def env(here: World, topic: str, make_token: Callable[..., str]) -> dict[str, str]:
    """The environment of an example."""
    token = make_token({topic: EVERYTHING})
    url = f"{here.url}/api/queue/"
    return {"DELAYTASKS_URL": url, "DELAYTASKS_TOKEN": token, "TOPIC": topic, "PATH": os.environ["PATH"]}


@pytest.mark.parametrize("right", WRONG_IN_PHP)
def test_php_refuses_each_wrong_use(right: str, php: Path, env: dict[str, str]) -> None:
    wrong, error = WRONG_IN_PHP[right]
    write_wrong_copy(php / "rest.php", {right: wrong})
    done = run(["php", "-d", "display_errors=stderr", "-d", "log_errors=0", "wrong.php", "order:1042"], php, env)
    assert done.returncode == 255, done
    assert error in done.stderr


@pytest.mark.parametrize("language", EXAMPLES)
def test_example_takes_a_job_from_its_creation_to_its_end(
    language: str, request: pytest.FixtureRequest, topic: str, env: dict[str, str]
) -> None:
    directory: Path = request.getfixturevalue(language)
    if language == "typescript":
        request.getfixturevalue("compiled")
    done = run([*EXAMPLES[language], "order:1042"], directory, env)
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
