"""pipeline load: many promises at once, from a file, a folder or a query."""

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError, CommandParser
from django.db import Error, connections

from .... import conf, loaded, topics
from ....exceptions import MirrorDown
from ....models import LoadChunk, Topic
from ....promises import check_actor
from .. import arguments
from ..answer import Answer, Options, Verb
from .asking import ask

MAPPING = {  # option -> what it says; the same words in a mapping file
    "topic": "the topic of all of them",
    "topic_from": "an expression that gives the topic (default: the column topic)",
    "key": "the business name (default: the column key)",
    "due": "when: a timestamp, or a text in ISO 8601 (default: the column due_at)",
    "since": "or since when, as for --due; with --delay",
    "delay": "how many seconds after --since: a number, or an interval",
    "ttr": "seconds one attempt may take (default: the column ttr_ms if there is one, or the topic's)",
    "body_from": "the whole body: JSON, or a struct (default: the column body if there is one)",
}


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("source", nargs="?", default="", metavar="SOURCE", help="a CSV or Parquet: a file or a folder")
    parser.add_argument("--query", default="", metavar="SQL", help="or what this answers, asked of the jobs' database")
    for name, said in MAPPING.items():
        metavar = "TOPIC" if name == "topic" else "EXPRESSION"
        parser.add_argument(f"--{name.replace('_', '-')}", default="", metavar=metavar, help=said)
    parser.add_argument(
        "--body", action="append", default=[], type=_member, metavar="NAME=EXPRESSION", help="a member of the body"
    )
    parser.add_argument("--mapping", metavar="FILE", help="a TOML file that says the same; options go before it")
    parser.add_argument("--zone", type=_zone, help="of local times, such as Europe/Berlin")
    parser.add_argument("--spread", type=_spread, default=0, metavar="SECONDS", help="each later by a part of that")
    parser.add_argument(
        "--on-conflict", choices=("reject", "keep", "replace"), default="reject",
        help="if a live job has this topic and key: refuse the row (the default), keep the job, or give it these terms",
    )  # fmt: skip
    parser.add_argument(
        "--most-rejects", default="5%", metavar="N|P%", help="with more, nothing is loaded (default: 5%%)"
    )
    parser.add_argument("--run", default="", dest="name", metavar="ID", help="go on with this run, or name a new one")
    parser.add_argument("--format", choices=("csv", "parquet"), default="", help="where names do not tell it")
    parser.add_argument("--encoding", default="utf-8", help="of a CSV (default: utf-8)")
    parser.add_argument(
        "--delimiter", type=_delimiter, help="of a CSV: a character, or tab (default: a comma; of .tsv a tab)"
    )
    parser.add_argument("--by", default="", help="who asks: kept in an event of each job (default: no event)")


def _member(text: str) -> tuple[str, str]:
    name, equals, expression = text.partition("=")
    if not (name.strip() and equals and expression):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=EXPRESSION")
    return name.strip(), expression


def _zone(text: str) -> str:
    try:
        return str(ZoneInfo(text).key)
    except (KeyError, OSError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time zone, such as Europe/Berlin") from None


def _spread(text: str) -> float:
    found = arguments.seconds(text)
    if not 0 < found <= conf.get().max_delay_seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return found


def _delimiter(text: str) -> str:
    text = "\t" if text in ("tab", "\\t") else text
    if len(text) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one character")
    return text


def mapping_of(options: Options) -> dict[str, Any]:
    """What the file says, and over it what the options say. Raises CommandError."""
    given = _from_file(options["mapping"]) if options["mapping"] else {}
    given |= {name: options[name] for name in MAPPING if options[name]}
    return given | ({"body": dict(options["body"])} if options["body"] else {})


def _from_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"The mapping {path} cannot be read: {error}.", returncode=arguments.USAGE) from error


def known_topics(using: str) -> dict[str, int]:
    """Each topic that a job may have -> the TTR of its jobs in ms."""
    names = {*topics.known(), *Topic.objects.using(using).values_list("name", flat=True)}
    return {name: topics.ttr_ms(name) for name in sorted(names)}


def wishes_of(options: Options, using: str) -> dict[str, Any]:
    """What the run is told."""
    settings, source = conf.get(), options["source"]
    return {
        "source": source if urlsplit(source).scheme or not source else str(Path(source).absolute()),
        "query": options["query"], "mapping": mapping_of(options), "name": options["name"],
        "limits": {
            "topics": known_topics(using), "max_delay_seconds": settings.max_delay_seconds,
            "max_body_bytes": settings.max_body_bytes, "zone": options["zone"] or "",
        },
        "reading": {
            "kind": options["format"], "encoding": options["encoding"], "delimiter": options["delimiter"] or "",
        },
        "spread_seconds": options["spread"], "on_conflict": options["on_conflict"],
        "most_rejects": options["most_rejects"], "by": check_actor(options["by"]),
    }  # fmt: skip


def _run(options: Options, using: str) -> Answer:
    LoadChunk.objects.using(using).exists()  # or the command says that `migrate` was not run

    def progress(text: str) -> None:
        if text:
            print(text, file=sys.stderr, flush=True)
        tell(using)

    answer = ask("load", options, using, wishes_of(options, using), progress)
    tell(using)
    return Answer(answer, text_of(answer), answer.get("refused", ""))


def tell(using: str) -> None:
    """What is loaded and due soon is in the mirror at once. Where something does not answer, the guards see to it.

    A run may take hours, in which a server closes connections that do nothing: what it answers is not lost by that.
    """
    try:
        loaded.tell(using)
    except MirrorDown:
        pass
    except Error:
        connections[using].close()


def text_of(answer: dict[str, Any]) -> str:
    if not answer["read"]:
        return f"run {answer['run']}: there are no rows: nothing was loaded"
    rejected = ", ".join(f"{rows} {reason}" for reason, rows in answer["rejected"].items())
    parts = {"inserted": "jobs scheduled", "replaced": "replaced", "kept": "live already and kept",
             "refused_live": "live already and refused"}  # fmt: skip
    done = [f"{answer[name]} {said}" for name, said in parts.items() if answer[name] or name == "inserted"]
    before = f" ({answer['before']} of the rows before)" if answer["before"] else ""
    lines = [
        f"run {answer['run']}: {answer['read']} rows read, {sum(answer['rejected'].values())} rejected"
        + (f" ({rejected})" if rejected else ""),
        f"{', '.join(done)}{before}, in {answer['seconds']} s: {answer['rows_per_second']} rows/s",
        answer["rejects"],
    ]
    if answer.get("refused"):  # which says what is loaded: nothing, or what a database that is away knows
        del lines[1]
    return "\n".join(filter(None, lines))


VERB = Verb(
    "Many promises at once, from a CSV, Parquet or a query. Each row is judged by the rules of `schedule`; what is "
    "rejected is written down with its reason, the rest is loaded in chunks, each once. Expressions are Spark SQL over "
    "the columns of SOURCE; a local time needs --zone.",
    _arguments,
    _run,
)
