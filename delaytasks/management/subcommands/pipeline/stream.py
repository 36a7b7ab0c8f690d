"""pipeline stream: write committed events to the lake, with statistics per minute."""

import os

from django.core.management.base import CommandParser

from .. import arguments
from ..output import Answer, Options, Verb
from .process import run_application


def _arguments(parser: CommandParser) -> None:
    seconds, days = arguments.number("seconds", 0.1, 86_400 * 366), arguments.number("days", 0, 36_500)
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--once", action="store_true", help="process the available events, then exit")
    until.add_argument("--for", type=seconds, dest="for_seconds", metavar="SECONDS", help="exit after this time")
    parser.add_argument("--every", type=seconds, default=2.0, metavar="SECONDS", help="polling interval (default: 2)")
    parser.add_argument(
        "--keep-days", type=days, default=0.0, metavar="DAYS", help="delete older data (default: never)"
    )


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
