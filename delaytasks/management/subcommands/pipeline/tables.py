"""pipeline convert, pipeline optimize: change the lake's tables without starting Spark."""

import importlib
import importlib.util
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from ....pipeline.exit_codes import ExitCode
from .. import arguments
from ..output import Answer, Options, Verb
from .process import MISSING, database_of, folder


def _run(name: str, options: Options, using: str) -> dict[str, Any]:
    """Run an application in this process and return its result. Raises CommandError with its error."""
    root = folder(options, using)
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow", "deltalake")):
        raise ImproperlyConfigured(MISSING)
    from pyarrow import ArrowException

    from ....pipeline.sources.database import Busy, Database, DatabaseUnavailable, NotAllowed
    from ....pipeline.spark import errors, full_disk
    from ....pipeline.tables.lake import Lake, LakeError

    application = importlib.import_module(f"delaytasks.pipeline.applications.{name}")
    try:
        lake = Lake(root)
        with full_disk.translate_errors(lake, {}):
            answer: dict[str, Any] = application.run(Database(**database_of(using)), lake)
    except (Busy, DatabaseUnavailable, full_disk.DiskFull, NotAllowed, LakeError) as error:
        raise CommandError(str(error), returncode=ExitCode.COULD_NOT_RUN) from error
    except (OSError, ArrowException) as error:
        raise CommandError(errors.file_error_message(error), returncode=ExitCode.COULD_NOT_RUN) from error
    return answer


def _convert(options: Options, using: str) -> Answer:
    answer = _run("convert", options, using)
    text = (
        f"{answer['runs']} runs of the archive, {answer['months']} months of hourly statistics and {answer['parts']} "
        "parts of the stream converted. "
        f"The archive has {answer['jobs']} jobs and {answer['events']} events."
    )
    return Answer(answer, text)


def _optimize(options: Options, using: str) -> Answer:
    answer = _run("optimize", options, using)
    return Answer(answer, f"The archive has {answer['jobs']} files of jobs and {answer['events']} of events.")


CONVERT = Verb(
    "Convert an archive, hourly statistics and a stream of an earlier version to Delta tables. Moves the files without "
    "copying them. Can be repeated. Does not start Spark.",
    arguments.none,
    _convert,
)
OPTIMIZE = Verb(
    "Rewrite the archive's tables in few large files, ordered by key and by job, so that `show` reads less. Does not "
    "start Spark.",
    arguments.none,
    _optimize,
)
