"""pipeline audit: whether the business's rows have their promises, and what became of these."""

import shlex
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .. import arguments
from ..answer import Answer, Options, Verb, table
from .asking import ask, needs_spark

SHOWN = 3  # samples of a class, in the text
HEAD = ("class", "keys", "must be empty", "for example")


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--rule", required=True, metavar="FILE",
        help="TOML: which rows of the business should have a promise (docs/pipeline.md)",
    )  # fmt: skip


def _run(options: Options, using: str) -> Answer:
    needs_spark()
    from ....pipeline import rules

    file = options["rule"]
    try:
        given = rules.read(file)
        declared = rules.rules_of(file, given)
    except rules.BadRule as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    wishes = {"file": file, "rules": [each | _absolute(rule) for each, rule in zip(given, declared, strict=True)]}
    answer = ask("audit", options, using, wishes)
    load = ["manage.py", "delaytasks", "pipeline", "load"]
    lake = ["--lake", options["lake"]] if options["lake"] else []
    database = ["--database", options["database"]] if options["database"] else []
    told = [_told(each, [*load, each["missing"], *lake, *database]) for each in answer["rules"]]
    end = f"as of {answer['as_of']}, in {answer['seconds']} s"
    return Answer(answer, "\n\n".join([*told, end]), answer.get("refused", ""))


def _absolute(rule: Any) -> dict[str, str]:
    return {"parquet": rule.parquet} if rule.parquet else {}


def _told(found: dict[str, Any], load: list[str]) -> str:
    rows = [
        (name, each["count"], "yes" if each["must_be_empty"] else "", _keys(each["samples"], each["count"]))
        for name, each in found["classes"].items()
    ]
    lines = [
        f"{found['name']}: {found['rows']} rows of {found['source']}, {found['jobs']} jobs of {found['topic']}",
        table(HEAD, rows, right=("keys",)),
        f"each key with its class: {found['folder']}",
    ]
    if found["missing"]:
        lines.append(f"to schedule what is missing: {shlex.join(load)}")
    return "\n".join(lines)


def _keys(samples: list[dict[str, Any]], count: int) -> str:
    shown = ", ".join(str(each["key"]) for each in samples[:SHOWN])
    return f"{shown}, ..." if count > SHOWN else shown


VERB = Verb(
    "Whether every row of the business that should have a promise has exactly one, and what became of each. The exit "
    "code is 1 if a class that must be empty is not.",
    _arguments,
    _run,
)
