"""Asks Spark a question, in a process of its own; what a run is told, and what it answers."""

import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections

from .... import archived
from .. import arguments
from ..answer import Options
from . import starting

MISSING = 'The pipeline needs Spark, which is an extra: pip install "delaytasks[pipeline]".'
KEYWORDS = (  # of libpq that say how to reach and trust a server
    "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "gssencmode", "connect_timeout",
    "target_session_attrs", "channel_binding",
)  # fmt: skip
Progress = Callable[[str], None]  # is told a sentence, or "" for no news to people
LINES = 20  # of what a run said before it died


def database_of(using: str) -> dict[str, str]:
    """How to reach an alias, as the pipeline's Database wants it."""
    connection = connections[using]
    given = connection.settings_dict
    about = {name: str(given.get(name.upper()) or "") for name in ("name", "host", "port", "user", "password")}
    if connection.vendor == "sqlite":
        return {"vendor": "sqlite", "name": str(Path(about["name"]).absolute())}
    extra = {name: str(value) for name, value in given.get("OPTIONS", {}).items() if name in KEYWORDS}
    return about | {"vendor": connection.vendor, "libpq": json.dumps(extra) if extra else ""}


def needs_spark() -> None:
    """Raises ImproperlyConfigured where the extra is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        raise ImproperlyConfigured(MISSING)


def ask(
    question: str, options: Options, using: str, wishes: dict[str, Any], progress: Progress = lambda text: None
) -> dict[str, Any]:
    """What a run answers; it may tell of its progress before.

    Raises CommandError with its sentence, and ImproperlyConfigured where it cannot begin.
    """
    needs_spark()
    from ....pipeline.database import Database
    from ....pipeline.settings import BadSettings, Settings

    lake = archived.folder(using, options["lake"])
    if not lake:
        raise CommandError("Say where the files go: --lake FOLDER, or DELAYTASKS['LAKE'].", returncode=arguments.USAGE)
    try:
        database = Database(**database_of(using), jdbc=options["jdbc_driver"])
        settings = Settings(database, lake, options["master"], dict(options["conf"]), wishes)
    except BadSettings as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    with starting.command(question, settings, submit=options["submit"]) as (command, environment):
        return _answer_of(command, environment, progress)


def _answer_of(command: list[str], environment: dict[str, str], progress: Progress) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
        ) as run,
    ):  # fmt: skip
        assert run.stdout is not None
        for line in run.stdout:
            answer = _document(line)
            if "progress" in answer:
                progress(answer["progress"])
        run.wait()
        if not answer or "progress" in answer:
            raise CommandError(f"The run died ({run.returncode}). It said last:\n{_end(said)}")
    if "error" in answer:
        raise CommandError(answer["message"], returncode=run.returncode or 1)
    return answer


def _document(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:  # something else that Spark or a library printed
        return {}
    return found if isinstance(found, dict) else {}


def _end(file: IO[bytes]) -> str:
    file.seek(0)
    return "\n".join(file.read().decode(errors="replace").splitlines()[-LINES:])
