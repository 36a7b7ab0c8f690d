"""pipeline stream: write committed events to the lake, with statistics per minute."""

import argparse
import os

from django.core.management.base import CommandParser

from ..output import Answer, Options, Verb
from .process import run_application


def _arguments(parser: CommandParser) -> None:
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--once", action="store_true", help="process the available events, then exit")
    until.add_argument("--for", type=_seconds, dest="for_seconds", metavar="SECONDS", help="exit after this time")
    parser.add_argument("--every", type=_seconds, default=2.0, metavar="SECONDS", help="polling interval (default: 2)")
    parser.add_argument(
        "--keep-days", type=_days, default=0.0, metavar="DAYS", help="delete older data (default: never)"
    )


def _seconds(text: str) -> float:
    return _number(text, "seconds", 0.1, 86_400.0 * 366)


def _days(text: str) -> float:
    return _number(text, "days", 0.0, 36_500.0)


def _number(text: str, unit: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} from {least:g} to {most:g}")
    return number


def _run(options: Options, using: str) -> Answer:
    parameters = {
        "every_seconds": options["every"], "for_seconds": options["for_seconds"], "once": options["once"],
        "keep_days": options["keep_days"], "parent": None if options["submit"] else os.getpid(),
    }  # fmt: skip
    answer = run_application("stream", options, using, parameters, lasts=True)
    text = f"{answer['events']} events in {answer['batches']} batches, up to {answer['to']}, in {answer['seconds']} s"
    return Answer(answer, text)


VERB = Verb(
    "Write committed events to the lake, with statistics for `pipeline minutes`, until stopped by SIGTERM or Ctrl-C. "
    "A restart continues where it stopped; each event is written once.",
    _arguments,
    _run,
)
