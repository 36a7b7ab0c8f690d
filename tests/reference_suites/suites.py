"""The suites: which source distribution has each, and how its files are laid into a throw-away folder."""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .pythons import DJANGO_6, Missing

# In the statements that import them: the package django-tasks calls these exceptions InvalidTaskError, ...
IMPORTED_NAME = re.compile(r"(^    |import )InvalidTask(Backend)?(?=,|$)", re.MULTILINE)
# Django 6 is not for the Python that may run this; its tests are, with the package django-tasks.
PIP_DOWNLOAD = [
    sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary=:all:",
    "--ignore-requires-python", "--retries=1",
]  # fmt: skip
STAND_INS = Path(__file__).parent / "stand_ins"


@dataclass(frozen=True)
class Suite:
    """name          what the output and the table of exclusions call it
    requirement      of the source distribution, pinned: another version may have other tests
    folder           in that distribution
    label            what the test runner is told
    lay              lays the files into a folder; is given both paths and the version of Django
    """

    name: str
    requirement: str
    folder: str
    label: str
    lay: Callable[[Path, Path, tuple[int, ...]], None]


def _lay_django(source: Path, target: Path, version: tuple[int, ...]) -> None:
    """Put our backends in place of the dummy and the immediate one, and allow the tests to use a database."""
    shutil.copytree(source, target / "tasks")
    for path in (target / "tasks").glob("*.py"):
        text = path.read_text()
        text = re.sub(r"django\.tasks\.backends\.(dummy|immediate)\b", "stand_ins.backends", text)
        text = re.sub(r"\bSimpleTestCase, TransactionTestCase\b", "TransactionTestCase", text)
        text = re.sub(r"\bSimpleTestCase\b", "TransactionTestCase", text)
        text = text.replace("available_apps = []", "available_apps = None")
        if version < (6, 0):
            text = re.sub(r"\bdjango\.tasks\b", "django_tasks", text)
            text = re.sub(IMPORTED_NAME, r"\1InvalidTask\2Error as InvalidTask\2", text)
        path.write_text(text)


def _lay_django_tasks_db(source: Path, target: Path, version: tuple[int, ...]) -> None:
    (target / "tests").mkdir()
    (target / "tests" / "__init__.py").touch()
    shutil.copy(source / "tests.py", target / "tests")
    shutil.copy(STAND_INS / "db_tasks.py", target / "tests" / "tasks.py")


SUITES = (
    Suite("django", DJANGO_6, "tests/tasks", "tasks", _lay_django),
    Suite("django-tasks-db", "django-tasks-db==0.13.0", "tests", "tests.tests", _lay_django_tasks_db),
)


def download(suite: Suite, cache: Path) -> Path:
    """Return the unpacked source distribution of a suite, from the package index or from the cache. Raises Missing."""
    target = cache / suite.requirement
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=_made(cache)) as folder:
            done = subprocess.run([*PIP_DOWNLOAD, "--dest", folder, suite.requirement], text=True, capture_output=True)
            if done.returncode:
                raise Missing(f"{suite.requirement} could not be downloaded: {done.stderr.strip()[-300:]}")
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as file:
                file.extractall(folder, filter="data")
            shutil.move(archive.with_name(archive.name.removesuffix(".tar.gz")), target)
    return target


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def lay(suite: Suite, source: Path, target: Path, version: tuple[int, ...]) -> None:
    """Lay a suite and what stands in for its backend into a new folder."""
    target.mkdir(parents=True)
    suite.lay(source, target, version)
    shutil.copytree(STAND_INS, target / "stand_ins", ignore=shutil.ignore_patterns("django_tasks_db", "db_tasks.py"))
    shutil.copytree(STAND_INS / "django_tasks_db", target / "django_tasks_db")
    shutil.move(target / "stand_ins" / "run.py", target / "run.py")
