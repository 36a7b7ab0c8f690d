"""pipeline report: what happened, how late, and what falls due."""

import argparse
import os
from pathlib import Path

from django.core.management.base import CommandError, CommandParser

from .. import arguments
from ..answer import Answer, Options, Verb
from .asking import ask


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("--html", metavar="FILE", default="", help="put the page there as well")
    parser.add_argument(
        "--ahead-hours", type=_hours, default=36, metavar="HOURS", help="how far what falls due is told (default: 36)"
    )


def _hours(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 24 * 31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 744")
    return int(text)


def _run(options: Options, using: str) -> Answer:
    html = _writable(Path(options["html"]).absolute()) if options["html"] else ""
    answer = ask("report", options, using, {"html": html, "ahead_hours": options["ahead_hours"]})
    since = f"from {answer['since']} on" if answer["since"] else "from the beginning"
    herds = f", {_herds(answer['herds'])}" if answer["herds"] else ""
    text = f"{answer['rows']} rows of topics and hours {since}, in {answer['seconds']} s{herds}\n{answer['page']}"
    return Answer(answer, text)


def _writable(file: Path) -> str:
    """Raises CommandError now, and not when the report is made."""
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        problem = "is a folder" if file.is_dir() else "cannot be written" if file.parent.is_dir() else "has no folder"
        said = f"--html: {file} {problem}: name a file in a folder that is there."
        raise CommandError(said, returncode=arguments.USAGE)
    return str(file)


def _herds(number: int) -> str:
    return "1 herd is coming" if number == 1 else f"{number} herds are coming"


VERB = Verb(
    "What happened per topic and hour, how late, against last week, and what falls due: into the lake, TopicStat "
    "and a page. Only hours that may have changed are worked out.",
    _arguments,
    _run,
)
