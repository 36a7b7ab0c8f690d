"""pipeline stream: events to the lake and to minutes, as they are committed."""

import argparse
import os

from django.core.management.base import CommandParser

from ..answer import Answer, Options, Verb
from .asking import ask


def _arguments(parser: CommandParser) -> None:
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--once", action="store_true", help="take what there is, and end")
    until.add_argument("--for", type=_seconds, dest="for_seconds", metavar="SECONDS", help="end after so long")
    parser.add_argument("--every", type=_seconds, default=2.0, metavar="SECONDS", help="how often to look (default: 2)")
    parser.add_argument(
        "--keep-days", type=_days, default=0.0, metavar="DAYS", help="remove what happened longer ago (default: never)"
    )


def _seconds(text: str) -> float:
    return _number(text, "seconds", 0.1, 86_400.0 * 366)


def _days(text: str) -> float:
    return _number(text, "days", 0.0, 36_500.0)


def _number(text: str, of: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {of} from {least:g} to {most:g}")
    return number


def _run(options: Options, using: str) -> Answer:
    wishes = {
        "every_seconds": options["every"], "for_seconds": options["for_seconds"], "once": options["once"],
        "keep_days": options["keep_days"], "parent": None if options["submit"] else os.getpid(),
    }  # fmt: skip
    answer = ask("stream", options, using, wishes, lasts=True)
    text = f"{answer['events']} events in {answer['batches']} batches, up to {answer['to']}, in {answer['seconds']} s"
    return Answer(answer, text)


VERB = Verb(
    "Events to the lake and to the minutes that `pipeline minutes` shows, as they are committed, until it is told to "
    "stop (SIGTERM, Ctrl-C). Started again, it goes on where it was: each event once.",
    _arguments,
    _run,
)
