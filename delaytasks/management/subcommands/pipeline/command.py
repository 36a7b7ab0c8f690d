"""Subcommands that run a Spark application: manage.py delaytasks pipeline APPLICATION."""

import argparse

from django.core.management.base import CommandParser
from django.db import connections

from ....pipeline import exit_codes
from .. import arguments
from ..output import Answer, Options, Verb
from . import archive, audit, load, minutes, prepare_java, process, report, serve, stream, tables

APPLICATIONS: dict[str, Verb] = {
    "archive": archive.VERB, "report": report.VERB, "audit": audit.VERB, "load": load.VERB, "stream": stream.VERB,
    "minutes": minutes.VERB, "serve": serve.VERB, "convert": tables.CONVERT, "optimize": tables.OPTIMIZE,
    "forget-archive": archive.FORGET, "prepare-java": prepare_java.VERB,
}  # fmt: skip
# Where the lake is not mounted, they would begin a second archive, or take archived jobs for jobs that never were.
USING_ARCHIVE = ("archive", "report", "audit", "stream")


def _arguments(parser: CommandParser) -> None:
    applications = parser.add_subparsers(dest="application", metavar=" | ".join(APPLICATIONS), required=True)
    for name, application in APPLICATIONS.items():
        sub = applications.add_parser(name, help=application.help, description=application.help, epilog=exit_codes.HELP)
        application.arguments(sub)
        arguments.lake(sub)
        sub.add_argument(
            "--master", default="local[*]", help="Spark master: local[*], spark://..., yarn, k8s://..., sc://..."
        )
        sub.add_argument(
            "--conf", action="append", default=[], type=_option, metavar="NAME=VALUE", help="a Spark option; repeatable"
        )
        sub.add_argument(
            "--submit", action="store_true", help="start with spark-submit (from SPARK_HOME or pyspark), in client mode"
        )
        # No defaults here: they would override a --json or --database that comes before APPLICATION.
        sub.add_argument(
            "--database", choices=tuple(connections), default=argparse.SUPPRESS, help="database alias of the jobs"
        )
        arguments.json_option(sub, default=argparse.SUPPRESS)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _run(options: Options, using: str) -> Answer:
    application = options["application"]
    if application in USING_ARCHIVE:
        process.check_archive(options, using)
    return APPLICATIONS[application].run(options, using)


VERBS: dict[str, Verb] = {
    "pipeline": Verb(
        f"Run a Spark application: {', '.join(APPLICATIONS)}. {exit_codes.HELP}", _arguments, _run,
        exit_codes.ExitCode.COULD_NOT_RUN,
    ),
}  # fmt: skip
