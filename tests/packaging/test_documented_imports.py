"""Every import that was ever documented works: a moved module leaves a shim at its old name."""

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


def run(program: str) -> None:
    """Run the program in a process of its own, with settings and apps loaded."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import django\ndjango.setup()\n{program}"],
        cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, f"{program}\n{done.stderr}"


@pytest.mark.parametrize("program", DOCUMENTED.values(), ids=DOCUMENTED.keys())
def test_a_documented_import_still_works(program: str) -> None:
    run(program)


def test_the_imports_in_the_current_documents_work() -> None:
    found = {match[1].strip() for path in DOCUMENTS for match in IMPORT.finditer(path.read_text())}
    assert "from delaytasks.client import Client, Consumer, Job" in found, "the pattern no longer matches"
    run("\n".join(sorted(found)))


@pytest.mark.parametrize("path", ["delaytasks/pipeline/run.py", "delaytasks/client.py"])
def test_a_file_that_the_documents_tell_to_copy_exists(path: str) -> None:
    assert (ROOT / path).is_file()
