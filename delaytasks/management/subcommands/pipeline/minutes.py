"""pipeline minutes: show the last minutes of each topic, as written by `pipeline stream`."""

import importlib.util
import os
import time
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from .... import clock, formatting
from ....pipeline.exit_codes import ExitCode
from .. import arguments
from ..output import Answer, Options, Verb, rfc3339_ms, table
from .process import MISSING, folder

COLUMNS = {  # heading -> column
    "happened": "happened", "finished": "finished", "retried": "retried", "died": "died", "cancelled": "cancelled",
    "snoozed": "snoozed", "begun": "begun", "p50 ms": "late_p50_ms", "p95 ms": "late_p95_ms", "p99 ms": "late_p99_ms",
    "worst ms": "late_worst_ms",
}  # fmt: skip


def _arguments(parser: CommandParser) -> None:
    minutes = arguments.integer(1440)
    parser.add_argument("--last", type=minutes, default=15, metavar="MINUTES", help="how many minutes (default: 15)")
    parser.add_argument("--topic", help="only this topic")


def _run(options: Options, using: str) -> Answer:
    root = folder(options, using)
    if importlib.util.find_spec("pyarrow") is None:
        raise ImproperlyConfigured(MISSING)
    from ....pipeline.applications import minutes
    from ....pipeline.spark import errors
    from ....pipeline.tables import lake

    now_ms = int(time.time() * 1000)
    since_ms = now_ms - now_ms % 60_000 - (options["last"] - 1) * 60_000
    try:
        records = minutes.read(lake.Lake(root), since_ms, topic=options["topic"])
        published_ms = minutes.published_ms(lake.Lake(root))
    except lake.LakeError as error:
        raise CommandError(str(error), returncode=ExitCode.COULD_NOT_RUN) from error
    except OSError as error:
        raise CommandError(errors.file_error_message(error), returncode=ExitCode.COULD_NOT_RUN) from error
    rows = [[_clock(each["minute_ms"]), each["topic"], *(_cell(each[name]) for name in COLUMNS.values())]
            for each in records]  # fmt: skip
    text = table(["minute (UTC)", "topic", *COLUMNS], rows, right=[*COLUMNS]) if rows else "No events."
    if published_ms is None:
        _check_folder(lake.Lake(root))
        text = "There is no data of a stream here. Run: manage.py delaytasks pipeline stream."
    else:
        ago = formatting.relative(clock.from_ms(published_ms), clock.from_ms(now_ms))
        text += f"\nThe stream wrote its last events {ago}."
    data = [{"minute_at": rfc3339_ms(each.pop("minute_ms")), **each} for each in records]
    return Answer({"published_at": rfc3339_ms(published_ms), "minutes": data}, text)


def _check_folder(lake: Any) -> None:
    """Raise CommandError if the lake's folder does not exist, for example because it is not mounted."""
    folder = os.path.dirname(lake.base)
    if lake.scheme == "file" and not os.path.isdir(folder):
        message = f"The lake {folder} does not exist. Mount it, or set another by --lake or DELAYTASKS['LAKE']."
        raise CommandError(message, returncode=ExitCode.COULD_NOT_RUN)


def _clock(ms: int) -> str:
    return f"{clock.from_ms(ms):%m-%d %H:%M}"


def _cell(number: Any) -> str:
    return "" if number is None else str(number)


VERB = Verb(
    "Show event counts per topic and minute, and how late first attempts were, as written by `pipeline stream`. Uses "
    "neither the database nor Spark.",
    _arguments,
    _run,
)
