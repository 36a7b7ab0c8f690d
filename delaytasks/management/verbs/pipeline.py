"""pipeline report, archive: questions for Spark, each asked in a process of its own."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from ... import archived
from . import arguments
from .answer import Answer, Options, Verb

ROOT = Path(__file__).parents[3]
MISSING = 'The pipeline needs Spark, which is an extra: pip install "delaytasks[pipeline]".'
KEYWORDS = (  # of libpq that say how to reach and trust a server
    "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "gssencmode", "connect_timeout",
    "target_session_attrs", "channel_binding",
)  # fmt: skip
LINES = 20  # of what a run said before it died


def database_of(using: str) -> dict[str, str]:
    """How to reach an alias, as the pipeline's Database wants it."""
    connection = connections[using]
    given = connection.settings_dict
    about = {name: str(given.get(name.upper()) or "") for name in ("name", "host", "port", "user", "password")}
    if connection.vendor == "sqlite":
        return {"vendor": "sqlite", "name": str(Path(about["name"]).absolute())}
    extra = {name: str(value) for name, value in given.get("OPTIONS", {}).items() if name in KEYWORDS}
    return about | {"vendor": connection.vendor, "libpq": json.dumps(extra) if extra else ""}


def _arguments(parser: CommandParser) -> None:
    questions = parser.add_subparsers(dest="question", metavar="report | archive", required=True)
    for name, question in QUESTIONS.items():
        sub = questions.add_parser(name, help=question.help, description=question.help)
        question.arguments(sub)
        sub.add_argument(
            "--lake",
            metavar="FOLDER",
            help="a path or URI; each database has a folder in it (default: LAKE)",
        )
        sub.add_argument(
            "--master", default="local[*]", help="Spark's: local[*], spark://..., yarn, k8s://..., sc://..."
        )
        sub.add_argument(
            "--conf", action="append", default=[], type=_option, metavar="NAME=VALUE", help="an option of Spark's"
        )
        # Without a default of its own, which would take back what was said before the question.
        sub.add_argument(
            "--json", action="store_true", dest="as_json", default=argparse.SUPPRESS, help="one JSON document on stdout"
        )


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _run(options: Options, using: str) -> Answer:
    return QUESTIONS[options["question"]].run(options, using)


def ask(question: str, options: Options, using: str, wishes: dict[str, Any]) -> dict[str, Any]:
    """What a run answers. Raises CommandError with its sentence, and ImproperlyConfigured where it cannot begin."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        raise ImproperlyConfigured(MISSING)
    from ...pipeline.database import Database
    from ...pipeline.settings import BadSettings, Settings

    lake = archived.folder(using, options["lake"])
    if not lake:
        raise CommandError("Say where the files go: --lake FOLDER, or DELAYTASKS['LAKE'].", returncode=arguments.USAGE)
    try:
        settings = Settings(Database(**database_of(using)), lake, options["master"], dict(options["conf"]), wishes)
    except BadSettings as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    return _answer_of(question, settings.environment())


def _answer_of(question: str, environment: dict[str, str]) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(
            [sys.executable, "-m", "delaytasks.pipeline.run", question], stdout=subprocess.PIPE, stderr=said, text=True,
            stdin=subprocess.DEVNULL, env={**os.environ, **environment, "PYTHONPATH": path}, check=False,
        )  # fmt: skip
        try:
            answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise CommandError(f"The run died ({done.returncode}). It said last:\n{_end(said)}") from None
    if "error" in answer:
        raise CommandError(answer["message"], returncode=done.returncode or 1)
    return answer


def _end(file: IO[bytes]) -> str:
    file.seek(0)
    return "\n".join(file.read().decode(errors="replace").splitlines()[-LINES:])


# -- report -------------------------------------------------------------------------------------


def _report_arguments(parser: CommandParser) -> None:
    parser.add_argument("--html", metavar="FILE", default="", help="put the page there as well")
    parser.add_argument(
        "--ahead-hours", type=_hours, default=36, metavar="HOURS", help="how far what falls due is told (default: 36)"
    )


def _hours(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 24 * 31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 744")
    return int(text)


def _report(options: Options, using: str) -> Answer:
    html = str(Path(options["html"]).absolute()) if options["html"] else ""
    answer = ask("report", options, using, {"html": html, "ahead_hours": options["ahead_hours"]})
    since = f"from {answer['since']} on" if answer["since"] else "from the beginning"
    herds = f", {answer['herds']} herds are coming" if answer["herds"] else ""
    text = f"{answer['rows']} rows of topics and hours {since}, in {answer['seconds']} s{herds}\n{answer['page']}"
    return Answer(answer, text)


# -- archive ------------------------------------------------------------------------------------


def _archive_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--older-than-days", type=_days, default=30.0, metavar="DAYS", help="jobs that ended longer ago (default: 30)"
    )
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


def _archive(options: Options, using: str) -> Answer:
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


QUESTIONS: dict[str, Verb] = {
    "archive": Verb(
        "Ended jobs leave the tables for Parquet files: written, compared, published and then pruned. They stay "
        "answerable: `show` and the admin look there for a job that is gone.",
        _archive_arguments,
        _archive,
    ),
    "report": Verb(
        "What happened per topic and hour, how late, against last week, and what falls due: into the lake, TopicStat "
        "and a page. Only hours that may have changed are worked out.",
        _report_arguments,
        _report,
    ),
}
VERBS: dict[str, Verb] = {"pipeline": Verb("Questions for Spark: report, archive.", _arguments, _run)}
