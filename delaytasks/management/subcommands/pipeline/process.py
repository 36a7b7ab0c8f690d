"""Run a Spark application in a child process, or by spark-submit: pass its parameters and read its result."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections

from ....jobs import history
from ....maintenance import retention
from ....pipeline.exit_codes import ExitCode
from .. import arguments
from ..output import Answer, Options

if TYPE_CHECKING:
    from ....pipeline.config import Settings

ROOT = Path(__file__).parents[4]
MISSING = 'The pipeline requires Spark: pip install "delaytasks[pipeline]".'
KEYWORDS = (  # libpq keywords for the connection, for its security and, in `options`, for the schema of the tables
    "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "gssencmode", "connect_timeout",
    "target_session_attrs", "channel_binding", "options",
)  # fmt: skip
Progress = Callable[[str], None]  # called with a message, or "" if there is none
LINES = 20  # lines at the end of a failed run's output that are shown


def database_of(using: str) -> dict[str, str]:
    """Return the connection parameters of a database alias, as arguments of the pipeline's Database."""
    connection = connections[using]
    settings = connection.settings_dict
    parameters = {name: str(settings.get(name.upper()) or "") for name in ("name", "host", "port", "user", "password")}
    if connection.vendor == "sqlite":
        return {"vendor": "sqlite", "name": str(Path(parameters["name"]).absolute())}
    extra = {name: str(value) for name, value in settings.get("OPTIONS", {}).items() if name in KEYWORDS}
    return parameters | {"vendor": connection.vendor, "libpq": json.dumps(extra) if extra else ""}


def folder(options: Options, using: str) -> str:
    """Return the lake folder of this database. Raises CommandError if none is configured."""
    path = history.lake_directory(using, options["lake"])
    if not path:
        raise CommandError("Set the lake: --lake FOLDER, or DELAYTASKS['LAKE'].", returncode=arguments.USAGE)
    return path


def check_archive(options: Options, using: str) -> None:
    """Raise CommandError if jobs of this database have been archived, but the lake's folder has no archive."""
    missing = retention.missing_archive(using, options["lake"] or None)
    if missing is not None:
        raise CommandError(f"{missing} {retention.MISSING_ADVICE}", returncode=ExitCode.COULD_NOT_RUN)


def needs_spark() -> None:
    """Raise ImproperlyConfigured if the extra `pipeline` is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        raise ImproperlyConfigured(MISSING)


def show_progress(text: str) -> None:
    """Write a message of a run to stderr."""
    if text:
        print(text, file=sys.stderr, flush=True)


def run_application(
    application: str, options: Options, using: str, parameters: dict[str, Any],
    progress: Progress = show_progress, *, lasts: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run a Spark application and return its result. progress() is called with its messages while it runs.

    lasts   True: it runs until it is stopped, its output goes to stderr, and Ctrl-C is passed on to it like SIGTERM

    Raises CommandError with the application's error, and ImproperlyConfigured if the application cannot start.
    """
    needs_spark()
    from ....pipeline.config import BadSettings, Settings
    from ....pipeline.sources.database import Database

    lake = folder(options, using)
    try:
        settings = Settings(Database(**database_of(using)), lake, options["master"], dict(options["conf"]), parameters)
    except BadSettings as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    with command_of(application, settings, submit=options["submit"]) as (command, environment):
        return _run_process(command, environment, progress, lasts)


@contextlib.contextmanager
def command_of(application: str, settings: "Settings", *, submit: bool) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield (command line, additional environment variables), valid only inside the block. Raises CommandError."""
    with tempfile.TemporaryDirectory(prefix="delaytasks-run-") as temporary:
        variables = settings.environment(Path(temporary))
        if submit:
            command, environment = _by_spark_submit(application, settings, Path(temporary))
            yield command, environment | variables
            return
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield [sys.executable, "-m", "delaytasks.pipeline", application], variables | {"PYTHONPATH": path}


def _by_spark_submit(application: str, settings: "Settings", folder: Path) -> tuple[list[str], dict[str, str]]:
    from ....pipeline.config import BadSettings
    from ....pipeline.spark import submit
    from ....pipeline.spark.java import JavaMissing

    try:
        return submit.command(application, settings, folder), submit.environment(settings)
    except BadSettings as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    except JavaMissing as error:
        raise CommandError(str(error), returncode=ExitCode.COULD_NOT_RUN) from error


def _run_process(command: list[str], environment: dict[str, str], progress: Progress, lasts: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    # In its own session, the child gets Ctrl-C only from _forward_signals(), and its Java process never gets it.
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=None if lasts else output, text=True, stdin=subprocess.DEVNULL,
            start_new_session=lasts, env={**os.environ, **environment},
        ) as run,
        _forward_signals(run, (signal.SIGTERM, signal.SIGINT) if lasts else (signal.SIGTERM,)),
    ):  # fmt: skip
        assert run.stdout is not None
        for line in run.stdout:
            document = _document(line)
            if "progress" in document:
                progress(document["progress"])
            answer = document or answer
        run.wait()
        if not answer or "progress" in answer:
            last = "Its output is above." if lasts else f"Last output:\n{_end(output)}"
            message = f"The run failed with exit code {run.returncode}. {last}"
            raise CommandError(message, returncode=ExitCode.COULD_NOT_RUN)
    if "error" in answer:
        raise CommandError(answer["message"], returncode=run.returncode or ExitCode.COULD_NOT_RUN)
    return answer


def to_answer(answer: dict[str, Any], text: str) -> Answer:
    """Convert the result of a run to an Answer with the run's exit code."""
    return Answer(answer, text, answer.get("refused", ""), answer.get("exit_code", ExitCode.FAULTS))


def _document(line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:  # other output of Spark or a library
        return {}
    return document if isinstance(document, dict) else {}


@contextlib.contextmanager
def _forward_signals(run: "subprocess.Popen[str]", which: Iterable[signal.Signals]) -> Iterator[None]:
    """Pass these signals on to the run inside the block. The run then ends; `stream` and `serve` write their result."""
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
