"""pipeline load: schedule many jobs from a file, a folder or a query."""

import argparse
import tomllib
from datetime import date, time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError, CommandParser
from django.db import Error, connections

from .... import conf, handlers, topics
from ....exceptions import BadCalendar, MirrorDown
from ....jobs.inputs import check_actor
from ....maintenance import loads
from ....models import LoadChunk
from ....redaction import redacted
from .. import arguments, audited
from ..output import Answer, Options, Verb
from . import calendars
from .process import run_application, show_progress, to_answer

MAPPING = {  # option, or key in a mapping file -> help text
    "topic": "topic of all jobs",
    "topic_from": "expression for the topic (default: the column topic)",
    "key": "expression for the key (default: the column key)",
    "due": "due time: a timestamp, or text in ISO 8601 (default: the column due_at)",
    "since": "start of --delay, in the form of --due",
    "delay": "delay after --since: a duration such as '60 days', or an expression for seconds or an interval",
    "calendar": "calendar for --delay: its days are working days, its hours are open hours",
    "ttr": "TTR in seconds (default: the column ttr_ms if it exists, else the topic's)",
    "body_from": "expression for the body: JSON or a struct (default: the column body if it exists)",
    "when": "load only rows for which this is true; the others are skipped (default: all rows)",
}


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("source", nargs="?", default="", metavar="SOURCE", help="a file or folder of CSV or Parquet")
    parser.add_argument("--query", default="", metavar="SQL", help="or a query of the jobs' database")
    for name, text in MAPPING.items():
        metavar = {"topic": "TOPIC", "calendar": "NAME"}.get(name, "EXPRESSION")
        parser.add_argument(f"--{name.replace('_', '-')}", default="", metavar=metavar, help=text)
    parser.add_argument(
        "--body",
        action="append",
        default=[],
        type=_member,
        metavar="NAME=EXPRESSION",
        help="a member of the body; repeatable",
    )
    parser.add_argument(
        "--mapping", metavar="FILE", help="a TOML file with these options; options of the command line take precedence"
    )
    parser.add_argument("--zone", type=_zone, help="zone of local times and of days in --delay, such as Europe/Berlin")
    parser.add_argument("--spread", type=_spread, default=0, metavar="SECONDS", help="spread due times over SECONDS")
    parser.add_argument(
        "--on-conflict", choices=("reject", "keep", "replace"), default="reject",
        help="if a job with this topic and key is live: refuse the row (default), keep the job, or replace its terms",
    )  # fmt: skip
    parser.add_argument(
        "--most-rejects", default="5%", metavar="N|P%",
        help="if more rows are rejected, load nothing (or the others, if jobs are live); exit code 1 (default: 5%%)",
    )  # fmt: skip
    parser.add_argument("--run", default="", dest="name", metavar="ID", help="continue this run, or name a new one")
    parser.add_argument(
        "--format", choices=("csv", "parquet"), default="", help="format of SOURCE, if file names do not show it"
    )
    parser.add_argument("--encoding", default="utf-8", help="encoding of CSV files (default: utf-8)")
    parser.add_argument(
        "--delimiter",
        type=_delimiter,
        help="delimiter of CSV files: a character, or tab (default: comma; for .tsv: tab)",
    )
    parser.add_argument("--by", default="", help="actor, stored in an event of each job (default: no event)")


def _member(text: str) -> tuple[str, str]:
    name, equals, expression = text.partition("=")
    if not (name.strip() and equals and expression):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=EXPRESSION")
    return name.strip(), expression


def _zone(text: str) -> str:
    try:
        return str(ZoneInfo(text).key)
    except (KeyError, OSError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time zone such as Europe/Berlin") from None


def _spread(text: str) -> float:
    seconds, longest = arguments.seconds(text), conf.get().max_delay_seconds
    if not 0 < seconds <= longest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to {longest:,}")
    return seconds


def _delimiter(text: str) -> str:
    text = "\t" if text in ("tab", "\\t") else text
    if len(text) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one character")
    return text


def mapping_of(options: Options) -> dict[str, Any]:
    """Return the mapping from the mapping file, overridden by options. Raises CommandError."""
    mapping = _from_file(options["mapping"]) if options["mapping"] else {}
    mapping |= {name: options[name] for name in MAPPING if options[name]}
    return mapping | ({"body": dict(options["body"])} if options["body"] else {})


def _from_file(path: str) -> dict[str, Any]:
    try:
        mapping = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise CommandError(f"Cannot read the mapping {path}: {error}.", returncode=arguments.USAGE) from error
    body = mapping.get("body")
    for name, value in [*mapping.items(), *(body.items() if isinstance(body, dict) else ())]:
        if isinstance(value, date | time | list) or (isinstance(value, dict) and value is not body):
            message = f"{path}, {name}: {value} must be in quotes, as an expression."
            raise CommandError(message, returncode=arguments.USAGE)
    return mapping


def known_topics(using: str) -> dict[str, int]:
    """Return {topic: default TTR in ms} for all known topics."""
    return {name: handlers.ttr_ms(name) for name in sorted(topics.known(using))}


def _calendar(mapping: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return calendars.snapshot_of(mapping["calendar"]) if mapping.get("calendar") else None
    except BadCalendar as error:
        raise CommandError(f"The mapping's calendar: {error}", returncode=arguments.USAGE) from error


def parameters(options: Options, using: str) -> dict[str, Any]:
    """Return the parameters of the Spark application."""
    settings, source, mapping = conf.get(), options["source"], mapping_of(options)
    return {
        "source": source if urlsplit(source).scheme or not source else str(Path(source).absolute()),
        "query": options["query"], "mapping": mapping, "name": options["name"],
        "limits": {
            "topics": known_topics(using), "max_delay_seconds": settings.max_delay_seconds,
            "max_body_bytes": settings.max_body_bytes, "zone": options["zone"] or "",
            "calendar": _calendar(mapping),
        },
        "reading": {
            "kind": options["format"], "encoding": options["encoding"], "delimiter": options["delimiter"] or "",
        },
        "spread_seconds": options["spread"], "on_conflict": options["on_conflict"],
        "most_rejects": options["most_rejects"], "by": check_actor(options["by"]),
    }  # fmt: skip


def _run(options: Options, using: str) -> Answer:
    LoadChunk.objects.using(using).exists()  # fails before the run if `migrate` was not run

    def progress(text: str) -> None:
        show_progress(text)
        update_mirror(using)

    chosen = parameters(options, using)
    with audited.many(using, "jobs.loaded", "jobs") as after:
        terms = {name: chosen[name] for name in ("source", "query", "on_conflict", "by")}
        after |= redacted(terms, conf.get().redact)
        answer = run_application("load", options, using, chosen, progress)
        after |= {name: answer.get(name, 0) for name in ("run", "inserted", "replaced", "kept")}
    update_mirror(using)
    return to_answer(answer, text_of(answer))


def update_mirror(using: str) -> None:
    """Enter loaded jobs that are due soon into the mirror. If that fails, the sweep enters them later.

    A run can take hours, and servers close idle connections: a closed connection must not lose the result of the run.
    """
    try:
        loads.add_to_mirror(using)
    except MirrorDown:
        pass
    except Error:
        connections[using].close()


def text_of(answer: dict[str, Any]) -> str:
    if not answer["read"]:
        return f"run {answer['run']}: no rows, nothing was loaded"
    rejected = ", ".join(f"{rows} {reason}" for reason, rows in answer["rejected"].items())
    parts = {"inserted": "jobs scheduled", "replaced": "replaced", "kept": "already live and kept",
             "refused_live": "already live and refused"}  # fmt: skip
    done = [f"{answer[name]} {label}" for name, label in parts.items() if answer[name] or name == "inserted"]
    before = f" ({answer['before']} of the rows in an earlier run)" if answer["before"] else ""
    lines = [
        f"run {answer['run']}: {answer['read']} rows read, {sum(answer['rejected'].values())} rejected"
        + (f" ({rejected})" if rejected else "")
        + (f", {answer['skipped']} skipped" if answer.get("skipped") else ""),
        f"{', '.join(done)}{before}, in {answer['seconds']} s: {answer['rows_per_second']} rows/s",
        answer["rejects"],
    ]
    if answer.get("refused"):  # the refusal message says what was loaded
        del lines[1]
    return "\n".join(filter(None, lines))


VERB = Verb(
    "Schedule many jobs from CSV, Parquet or a query. Rows are validated as in `schedule`; rejected rows are written "
    "to a file with the reason, the others are loaded in chunks, each once. Expressions are Spark SQL over the columns "
    "of SOURCE; local times require --zone.",
    _arguments,
    _run,
)
