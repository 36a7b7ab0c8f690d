"""Arguments that several verbs share, and how they are read. Bad ones are usage errors: exit code 2."""

import argparse
import getpass
import json
import os
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .answer import Options

USAGE = 2


def target(parser: CommandParser) -> None:
    parser.add_argument("target", nargs="+", metavar="ID | TOPIC KEY", help="the job's number, or its topic and key")


def target_of(options: Options) -> tuple[int | None, str, str]:
    """(id, topic, key): an id, or a topic and a key. Raises CommandError."""
    given = options["target"]
    if len(given) == 2:
        return None, given[0], given[1]
    if len(given) == 1 and given[0].isascii() and given[0].isdecimal() and len(given[0]) <= 18:
        return int(given[0]), "", ""
    raise CommandError("Name the job by its number, or by its topic and its key.", returncode=USAGE)


def lake(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lake", metavar="FOLDER", help="a path or URI; each database has a folder in it (default: LAKE)"
    )


def when(parser: CommandParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--delay", type=seconds, metavar="SECONDS", help="due so many seconds from now")
    group.add_argument(
        "--due", type=moment, metavar="TIME", help="due then, in ISO 8601 with a zone: 2030-01-01T09:00+01:00"
    )


def by(parser: CommandParser) -> None:
    parser.add_argument("--by", default=None, help="who changes it, for the job's history (default: command:USER)")


def by_of(options: Options) -> str:
    return options["by"] or f"command:{_os_user()}"


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no name for this uid, as in a bare container
        return str(os.getuid())


def seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def moment(text: str) -> datetime:
    """An aware datetime: a time without a zone is nobody's time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in ISO 8601, such as 2030-01-01T09:00Z") from None
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone: append Z for UTC, or an offset such as +01:00")
    return found


def limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 100_000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100000")
    return int(text)


def body(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
