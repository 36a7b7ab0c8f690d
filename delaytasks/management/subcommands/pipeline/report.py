"""pipeline report: statistics of past jobs, and forecast of due jobs."""

import argparse
from typing import Any

from django.core.management.base import CommandParser

from ..output import Answer, Options, Verb
from . import html_file
from .process import run_application


def _arguments(parser: CommandParser) -> None:
    html_file.add_argument(parser)
    parser.add_argument(
        "--ahead-hours", type=_hours, default=36, metavar="HOURS", help="length of the forecast (default: 36)"
    )


def _hours(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 24 * 31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 744")
    return int(text)


def _run(options: Options, using: str) -> Answer:
    html = html_file.writable(options)
    answer = run_application("report", options, using, {"html": html, "ahead_hours": options["ahead_hours"]})
    since = f"from {answer['since']} on" if answer["since"] else "from the beginning"
    herds = f", {_herds(answer['herds'])}" if answer["herds"] else ""
    rows = f"{answer['rows']} rows of topics and hours {since}, in {answer['seconds']} s{herds}"
    return Answer(answer, f"{_needs(answer['capacity'])}{rows}\n{answer['page']}")


def _needs(hours: list[dict[str, Any]]) -> str:
    """Return a line about the busiest hour; "" if no hour needs a slot."""
    busy = [each for each in hours if each["slots"]]
    if not busy:
        return ""
    most = max(busy, key=lambda each: (each["slots"] * each["minutes"], each["slots"]))
    slots = "1 slot" if most["slots"] == 1 else f"{most['slots']} slots"
    return f"{most['hour_at'][:16].replace('T', ' ')} UTC needs {slots} for {most['minutes']} minutes: the most\n"


def _herds(count: int) -> str:
    return "1 herd is coming" if count == 1 else f"{count} herds are coming"


VERB = Verb(
    "Compute statistics per topic and hour, compared with last week, and a forecast of due jobs. Writes the lake, "
    "TopicStat and a page. Only hours that may have changed are computed.",
    _arguments,
    _run,
)
