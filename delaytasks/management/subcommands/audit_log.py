"""Subcommand audit-log: read the audit log, for people or for a log server."""

import argparse
import json
import re
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser

from ... import formatting
from ...jobs import audit_log
from ...models import AuditEntry
from . import arguments
from .output import Answer, Options, Verb, rfc3339, table

DEFAULT_LIMIT = 1000
_AGE = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--since", type=_since, metavar="TIME",
        help="only entries from this time on: 2030-01-01T09:00Z, or an age such as 30m, 12h, 7d",
    )  # fmt: skip
    parser.add_argument(
        "--after", type=_id, default=0, metavar="ID", help="only entries with a larger id: next_after of the last call"
    )
    parser.add_argument(
        "--limit", type=arguments.limit, default=DEFAULT_LIMIT, metavar="N",
        help=f"at most N entries, the oldest first (default: {DEFAULT_LIMIT})",
    )  # fmt: skip


def _since(text: str) -> datetime:
    age = _AGE.fullmatch(text)
    return arguments.ago(text, timedelta(**{_UNITS[age[2]]: int(age[1])})) if age else arguments.moment(text)


def _id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of an entry")
    return int(text)


def _run(options: Options, using: str) -> Answer:
    limit = options["limit"]
    found = audit_log.read(using, since=options["since"], after=options["after"], limit=limit + 1)
    entries = found[:limit]
    next_after = entries[-1].pk if len(found) > limit else None
    data = {"entries": [_data(entry) for entry in entries], "next_after": next_after}
    return Answer(data, _text(entries, next_after))


def _data(entry: AuditEntry) -> dict[str, Any]:
    names = (
        "id",
        "at",
        "actor",
        "address",
        "request",
        "action",
        "target",
        "topic",
        "name",
        "reason",
        "before",
        "after",
    )
    return {name: getattr(entry, name) for name in names} | {"at": rfc3339(entry.at)}


def _text(entries: list[AuditEntry], next_after: int | None) -> str:
    if not entries:
        return "No entries."
    head = ("id", "when", "by", "from", "action", "target", "topic", "name", "reason", "before", "after")
    rows = [
        (each.pk, formatting.absolute(each.at, ms=True), each.actor or "-", each.address or "-", each.action,
         each.target, each.topic, each.name, each.reason, _json(each.before), _json(each.after))
        for each in entries
    ]  # fmt: skip
    more = f"\nThere are more entries: repeat with --after {next_after}." if next_after else ""
    return table(head, rows) + more


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


VERBS: dict[str, Verb] = {
    "audit-log": Verb("Show who changed what, when and from where, the oldest entry first.", _arguments, _run)
}
