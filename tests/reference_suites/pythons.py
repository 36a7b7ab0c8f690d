"""The environments in which the suites are run: this one, and one with Django 6, which needs Python 3.12."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DJANGO_6 = "Django==6.0.10"
NAMES = ("python3.14", "python3.13", "python3.12")
PROBE = "import sys, venv, sqlite3; sys.exit(sys.version_info < (3, 12))"
# What our own tests need beside requirements.txt, as requirements-dev.txt pins it.
TEST_PACKAGES = ("pytest", "pytest-django", "pytest-xdist", "pytest-randomly", "hypothesis")


class Missing(Exception):
    """This machine lacks an interpreter or a network. The message is half a sentence."""


@dataclass(frozen=True)
class Python:
    path: str
    version: str
    django: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"Django {'.'.join(map(str, self.django))}, Python {self.version}"


def this_one() -> Python:
    return _described(sys.executable)


def with_django_6(folder: Path, interpreter: str | None = None) -> Python:
    """Return an environment with Django 6, made in a folder. Raises Missing.

    interpreter   path of a Python from 3.12 on; None: the first that is found
    """
    if interpreter and not _works(interpreter):
        raise Missing(f"{interpreter} is not a Python from 3.12 on that works")
    found = interpreter or next(filter(_works, _interpreters()), None)
    if found is None:
        raise Missing(f"Django 6 needs Python 3.12 or newer, and there is none of {', '.join(NAMES)} here")
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join([DJANGO_6, *_pins()]) + "\n")
    done = subprocess.run(
        [found, ROOT / ".ci" / "venv.py", folder / "venv", requirements], cwd=ROOT, text=True, capture_output=True
    )
    if done.returncode:
        raise Missing(f"an environment with Django 6 could not be made: {done.stderr.strip()}")
    return _described(str(folder / "venv" / "bin" / "python"))


def _pins() -> list[str]:
    run, test = ((ROOT / name).read_text().splitlines() for name in ("requirements.txt", "requirements-dev.txt"))
    pins = [line for line in run if line[:1] not in ("", "#", "-") and not line.startswith("Django=")]
    return pins + [line for line in test if line.split("==")[0] in TEST_PACKAGES]


def _interpreters() -> Iterator[str]:
    """Yield the interpreters with these names, those of PATH before those of pyenv."""
    yield from (found for name in NAMES if (found := shutil.which(name)))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from (str(path) for name in NAMES for path in sorted(pyenv.glob(f"*/bin/{name}")))


def _works(path: str) -> bool:
    """Return whether this is a Python from 3.12 on that can make environments; a shim of pyenv may not be."""
    try:
        return subprocess.run([path, "-c", PROBE], capture_output=True).returncode == 0
    except OSError:
        return False


def _described(path: str) -> Python:
    text = "import sys, django; print(*sys.version_info[:3], sep='.'); print(*django.VERSION[:3], sep='.')"
    python, django = subprocess.run([path, "-c", text], text=True, capture_output=True, check=True).stdout.split()
    return Python(path, python, tuple(int(part) for part in django.split(".")))
