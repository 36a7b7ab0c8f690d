"""pipeline archive: ended jobs leave the tables for the lake."""

import argparse

from django.core.management.base import CommandParser

from ..answer import Answer, Options, Verb
from .asking import ask


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--older-than-days", type=_days, default=30.0, metavar="DAYS",
        help="jobs that ended longer ago: from 1 on whole days of UTC, so that a day is archived once (default: 30)",
    )  # fmt: skip
    parser.add_argument("--dead", action="store_true", help="dead jobs too; nobody can retry them any more then")
    parser.add_argument("--keep", action="store_true", help="write and compare, and leave the rows where they are")


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days <= 36_500:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days from 0 to 36500")
    return days


def _run(options: Options, using: str) -> Answer:
    wishes = {
        "older_than_days": options["older_than_days"], "dead": options["dead"], "prune": not options["keep"],
    }  # fmt: skip
    answer = ask("archive", options, using, wishes)
    text = (
        f"{answer['jobs']} jobs with {answer['events']} events archived in {answer['partitions']} partitions, "
        f"{answer['pruned']} jobs pruned, in {answer['seconds']} s"
    )
    if answer["withdrawn"]:
        text += f"\n{answer['withdrawn']} jobs changed meanwhile and stay"
    if answer["left"]:
        text += f"\n{answer['left']} jobs were locked: the next run prunes them"
    return Answer(answer, text, answer.get("refused", ""))


VERB = Verb(
    "Ended jobs leave the tables for Parquet files: written, compared, published and then pruned. They stay "
    "answerable: `show` and the admin look there for a job that is gone.",
    _arguments,
    _run,
)
