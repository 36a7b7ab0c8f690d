"""manage.py delaytasks pipeline QUESTION."""

import argparse

from django.core.management.base import CommandParser

from .. import arguments
from ..answer import Answer, Options, Verb
from . import archive, audit, load, minutes, report, stream

QUESTIONS: dict[str, Verb] = {
    "archive": archive.VERB, "report": report.VERB, "audit": audit.VERB, "load": load.VERB, "stream": stream.VERB,
    "minutes": minutes.VERB,
}  # fmt: skip


def _arguments(parser: CommandParser) -> None:
    questions = parser.add_subparsers(dest="question", metavar=" | ".join(QUESTIONS), required=True)
    for name, question in QUESTIONS.items():
        sub = questions.add_parser(name, help=question.help, description=question.help)
        question.arguments(sub)
        arguments.lake(sub)
        sub.add_argument(
            "--master", default="local[*]", help="Spark's: local[*], spark://..., yarn, k8s://..., sc://..."
        )
        sub.add_argument(
            "--conf", action="append", default=[], type=_option, metavar="NAME=VALUE", help="an option of Spark's"
        )
        sub.add_argument(
            "--jdbc-driver",
            metavar="CLASS",
            default="",
            help="read through this driver, which --conf spark.jars=FILE brings: org.postgresql.Driver",
        )
        sub.add_argument(
            "--submit", action="store_true", help="by spark-submit, of SPARK_HOME or of pyspark; in client mode"
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


VERBS: dict[str, Verb] = {"pipeline": Verb(f"Questions for Spark: {', '.join(QUESTIONS)}.", _arguments, _run)}
