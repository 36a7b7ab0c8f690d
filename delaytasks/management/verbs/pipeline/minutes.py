"""pipeline minutes: the last minutes of each topic, as a stream has written them."""

import argparse
import importlib.util
import time
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from .... import clock, words
from ..answer import Answer, Options, Verb, rfc3339_ms, table
from .asking import MISSING, folder

NUMBERS = {  # heading -> column
    "happened": "happened", "finished": "finished", "retried": "retried", "died": "died", "cancelled": "cancelled",
    "snoozed": "snoozed", "begun": "begun", "p50 ms": "late_p50_ms", "p95 ms": "late_p95_ms", "p99 ms": "late_p99_ms",
    "worst ms": "late_worst_ms",
}  # fmt: skip


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("--last", type=_minutes, default=15, metavar="MINUTES", help="how many minutes (default: 15)")
    parser.add_argument("--topic", help="this one alone")


def _minutes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 1440):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1440")
    return int(text)


def _run(options: Options, using: str) -> Answer:
    root = folder(options, using)
    if importlib.util.find_spec("pyarrow") is None:
        raise ImproperlyConfigured(MISSING)
    from ....pipeline import lake, minutes

    now_ms = int(time.time() * 1000)
    since_ms = now_ms - now_ms % 60_000 - (options["last"] - 1) * 60_000
    try:
        found = minutes.read(lake.Lake(root), since_ms, topic=options["topic"])
        published_ms = minutes.published_ms(lake.Lake(root))
    except lake.LakeError as error:
        raise CommandError(str(error), returncode=1) from error
    rows = [[_clock(each["minute_ms"]), each["topic"], *(_told(each[name]) for name in NUMBERS.values())]
            for each in found]  # fmt: skip
    text = table(["minute (UTC)", "topic", *NUMBERS], rows, right=[*NUMBERS]) if rows else "Nothing happened."
    if published_ms is None:
        text = "There is nothing of a stream here: manage.py delaytasks pipeline stream."
    else:
        ago = words.relative(clock.from_ms(published_ms), clock.from_ms(now_ms))
        text += f"\nThe stream brought its last events {ago}."
    told = [{"minute_at": rfc3339_ms(each.pop("minute_ms")), **each} for each in found]
    return Answer({"published_at": rfc3339_ms(published_ms), "minutes": told}, text)


def _clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%m-%d %H:%M}"


def _told(number: Any) -> str:
    return "" if number is None else str(number)


VERB = Verb(
    "What happened to each topic in each of the last minutes, and how late first attempts were, as a stream has "
    "written it. Asks no database and starts no Spark.",
    _arguments,
    _run,
)
