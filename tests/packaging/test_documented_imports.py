"""Every import that was ever documented works: a moved module leaves a shim at its old name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.py")]
# Not delaytasks_rest, which `make clients` generates.
IMPORT = re.compile(r"^\s*(from delaytasks\b[\w.]* import [\w, ]+|import delaytasks\b[\w.]*)\s*(?:#.*)?$", re.MULTILINE)

# Each with a use, because a name may be importable but wrong. Add lines, never remove any.
DOCUMENTED = {
    "the verbs": "from delaytasks import Retry, Snooze, cancel, handler, reschedule, retry_dead, run_now\n"
    "from delaytasks import schedule, schedule_many\nassert callable(schedule) and Snooze(60).delay_ms == 60_000",
    "the types": "from delaytasks import CancelResult, RunningJob\nassert CancelResult.CANCELLED == 'cancelled'",
    "backoff": "from delaytasks.backoff import Backoff\nBackoff(base_seconds=1)",
    "celery": "from celery import Celery\nfrom delaytasks.bootsteps import install\ninstall(Celery('project'))",
    "client": "from delaytasks.client import Client, Consumer, Job\nClient('https://example.com/api/queue/', 'token')",
    "forwarding": "from delaytasks.forward import Webhook, forward\nimport delaytasks\n"
    "assert callable(delaytasks.forward)\nforward('t', Webhook('https://shop.example/'))",
    "exceptions": "from delaytasks.exceptions import KeyIsLive, LeaseLost, Reserved, TTRExceeded, UnknownTopic",
    "signals": "from delaytasks.signals import job_dead, job_scheduled\njob_dead.connect(lambda **_: None)",
    "the row": "from delaytasks.models import Job, JobEvent, Topic\nassert Job._meta.label == 'delaytasks.Job'",
    "urls": "from django.urls import include\nassert include('delaytasks.api.urls')[0].urlpatterns",
    "asgi": "from delaytasks.api.bodies import BodyLimit\nBodyLimit(lambda *_: None, most=16)",
    "minutes": "from delaytasks.pipeline import lake, minutes\n"
    "import tempfile\nassert callable(minutes.read)\nlake.Lake(tempfile.gettempdir())",
    "zip": "import pathlib, tempfile\nfrom delaytasks.pipeline.package import zipped\n"
    "assert zipped(pathlib.Path(tempfile.mkdtemp()))",
    "zip, by its whole name": "import delaytasks.pipeline.package\nassert callable(delaytasks.pipeline.package.zipped)",
}  # fmt: skip


# What moved warns (tests/test_deprecation.py); the current documents must not use it.
QUIET = """import warnings
from delaytasks.deprecation import DelaytasksDeprecationWarning
warnings.simplefilter("ignore", DelaytasksDeprecationWarning)
"""

# Loads the settings and apps once, then runs each program in a copy of this process. Prints the errors, in their order.
RUNNER = """
import json, os, sys, traceback
import django
django.setup()
errors = []
for program in json.load(sys.stdin):
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            exec(compile(program, "the program", "exec"), {})
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-4000:])
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        error = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    errors.append(error or (f"ended with {status}" if status else ""))
print("ERRORS", json.dumps(errors))
"""


def errors_of(*programs: str) -> list[str]:
    """Run each program in a process of its own, with settings and apps loaded. Return its error, or ""."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER],
        cwd=ROOT, capture_output=True, text=True, input=json.dumps(programs),
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("ERRORS ")[2])


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    """The error of each documented program, or ""."""
    programs = [QUIET + program for program in DOCUMENTED.values()]
    return dict(zip(DOCUMENTED, errors_of(*programs), strict=True))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_import_still_works(name: str, errors: dict[str, str]) -> None:
    assert errors[name] == "", DOCUMENTED[name]


def test_the_imports_in_the_current_documents_work() -> None:
    found = {match[1].strip() for path in DOCUMENTS for match in IMPORT.finditer(path.read_text())}
    assert "from delaytasks.client import Client, Consumer, Job" in found, "the pattern no longer matches"
    assert errors_of("\n".join(sorted(found))) == [""]


def test_a_program_that_fails_is_seen() -> None:
    failed, warned, fine = errors_of("from delaytasks import shedule", "import warnings; warnings.warn('old')", "x = 1")
    assert "cannot import name 'shedule'" in failed
    assert "UserWarning: old" in warned
    assert fine == ""


@pytest.mark.parametrize("path", ["delaytasks/pipeline/run.py", "delaytasks/client.py"])
def test_a_file_that_the_documents_tell_to_copy_exists(path: str) -> None:
    assert (ROOT / path).is_file()
