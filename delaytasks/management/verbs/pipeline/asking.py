"""Asks Spark a question, in a process of its own; what a run is told, and what it answers."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections

from .... import stories
from .. import arguments
from ..answer import Options
from . import starting

MISSING = 'The pipeline needs Spark, which is an extra: pip install "delaytasks[pipeline]".'
KEYWORDS = (  # of libpq that say how to reach and trust a server, and (options) which schema the tables are in
    "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "gssencmode", "connect_timeout",
    "target_session_attrs", "channel_binding", "options",
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


def folder(options: Options, using: str) -> str:
    """Where this database's files of the pipeline are. Raises CommandError if nobody said."""
    found = stories.folder(using, options["lake"])
    if not found:
        raise CommandError("Say where the files go: --lake FOLDER, or DELAYTASKS['LAKE'].", returncode=arguments.USAGE)
    return found


def needs_spark() -> None:
    """Raises ImproperlyConfigured where the extra is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        raise ImproperlyConfigured(MISSING)


def ask(
    question: str, options: Options, using: str, wishes: dict[str, Any], progress: Progress = lambda text: None, *,
    lasts: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """What a run answers; it may tell of its progress before.

    lasts   it runs until it is told to stop: what it says meanwhile is for stderr, and Ctrl-C is passed on like SIGTERM

    Raises CommandError with its sentence, and ImproperlyConfigured where it cannot begin.
    """
    needs_spark()
    from ....pipeline.database import Database
    from ....pipeline.settings import BadSettings, Settings

    lake = folder(options, using)
    try:
        database = Database(**database_of(using), jdbc=options["jdbc_driver"])
        settings = Settings(database, lake, options["master"], dict(options["conf"]), wishes)
    except BadSettings as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    with starting.command(question, settings, submit=options["submit"]) as (command, environment):
        return _answer_of(command, environment, progress, lasts)


def _answer_of(command: list[str], environment: dict[str, str], progress: Progress, lasts: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    # In a session of its own Ctrl-C reaches the run by us alone, and not its Java as well. Else a terminal tells both.
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=None if lasts else said, text=True, stdin=subprocess.DEVNULL,
            start_new_session=lasts, env={**os.environ, **environment},
        ) as run,
        _passing_signals(run, (signal.SIGTERM, signal.SIGINT) if lasts else (signal.SIGTERM,)),
    ):  # fmt: skip
        assert run.stdout is not None
        for line in run.stdout:
            answer = _document(line)
            if "progress" in answer:
                progress(answer["progress"])
        run.wait()
        if not answer or "progress" in answer:
            last = "What it said is above." if lasts else f"It said last:\n{_end(said)}"
            raise CommandError(f"The run died ({run.returncode}). {last}")
    if "error" in answer:
        raise CommandError(answer["message"], returncode=run.returncode or 1)
    return answer


def _document(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:  # something else that Spark or a library printed
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _passing_signals(run: "subprocess.Popen[str]", which: Iterable[signal.Signals]) -> Iterator[None]:
    """These go on to the run, which ends; one that lasts does so in order, and answers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, lambda number, _: run.send_signal(number)) for each in which}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _end(file: IO[bytes]) -> str:
    file.seek(0)
    return "\n".join(file.read().decode(errors="replace").splitlines()[-LINES:])
