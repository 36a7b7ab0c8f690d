"""pipeline report: statistics of past jobs, and forecast of due jobs."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser

from ....maintenance import retention
from .. import arguments
from ..output import Answer, Options, Verb
from . import html_file
from .process import run_application

RECOMPUTED = timedelta(hours=2)  # before the last report; a report recomputes their hours


def _arguments(parser: CommandParser) -> None:
    html_file.add_argument(parser)
    hours = arguments.integer(24 * 31)
    parser.add_argument(
        "--ahead-hours", type=hours, default=36, metavar="HOURS", help="length of the forecast (default: 36)"
    )


def _run(options: Options, using: str) -> Answer:
    html = html_file.writable(options)
    answer = run_application("report", options, using, {"html": html, "ahead_hours": options["ahead_hours"]})
    since = f"from {answer['since']} on" if answer["since"] else "from the beginning"
    herds = f", {_herds(answer['herds'])}" if answer["herds"] else ""
    rows = f"{answer['rows']} rows of topics and hours {since}, in {answer['seconds']} s{herds}"
    lines = [f"{_needs(answer['capacity'])}{rows}", answer["page"]]
    return Answer(answer, "\n".join([*lines, *_retention_warning(using, options["lake"] or None, answer["last_at"])]))


def _retention_warning(using: str, lake: str | None, last_at: str | None) -> list[str]:
    """Return a sentence if jobs may have been deleted whose hours this report has computed again without them."""
    age = retention.configured().shortest
    if last_at is None or age is None or retention.archive_directory(using, lake) is not None:
        return []
    if age > datetime.now(UTC) - datetime.fromisoformat(last_at) + RECOMPUTED:
        return []
    warning = (
        f"RETENTION deletes ended jobs after {age}, and no archive has them. The last report is of {last_at}: its last "
        "hours were computed again without the jobs that were deleted since. Make reports more often, or keep jobs for "
        "longer."
    )
    return [warning]


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
