"""Arguments shared by subcommands, and their parsing. Invalid values are usage errors: exit code 2."""

import argparse
import getpass
import json
import math
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .output import Options

USAGE = 2


def check_text(options: Options) -> None:
    """Raise CommandError for text with bytes that are not UTF-8: no database stores it."""
    for value in options.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text != text.encode(errors="ignore").decode():
                raise CommandError(f"{text!r} is not UTF-8.", returncode=USAGE)


def target(parser: CommandParser) -> None:
    parser.add_argument("target", nargs="+", metavar="ID | TOPIC KEY", help="the job's id, or its topic and key")


def target_of(options: Options) -> tuple[int | None, str, str]:
    """Return (id, "", "") or (None, topic, key), depending on what was given. Raises CommandError."""
    values = options["target"]
    if len(values) == 2:
        return None, values[0], values[1]
    if len(values) == 1 and values[0].isascii() and values[0].isdecimal() and len(values[0]) <= 18:
        return int(values[0]), "", ""
    raise CommandError("Give the job's id, or its topic and key.", returncode=USAGE)


def lake(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lake",
        metavar="FOLDER",
        help="path or URI of the lake, with a folder per database (default: the LAKE setting)",
    )


def when(parser: CommandParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--delay", type=seconds, metavar="SECONDS", help="due after this time")
    group.add_argument(
        "--due", type=moment, metavar="TIME", help="due time, in ISO 8601 with a zone: 2030-01-01T09:00+01:00"
    )


def none(parser: CommandParser) -> None:
    """Add nothing, for a subcommand without arguments."""


def json_option(parser: argparse.ArgumentParser, **options: Any) -> None:
    text = "write one JSON document to stdout"
    parser.add_argument("--json", action="store_true", dest="as_json", help=text, **options)


def by(parser: CommandParser) -> None:
    parser.add_argument("--by", default=None, help="actor, stored in the job's events (default: command:USER)")


def by_and_reason(parser: CommandParser) -> None:
    by(parser)
    parser.add_argument("--reason", default="", help="stored in the job's events")


def by_of(options: Options) -> str:
    return options["by"] or os_actor()


def os_actor() -> str:
    """Return the actor of a change by this process: "command:" and the user of the operating system."""
    return f"command:{_os_user()}"


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user id has no name, as in a minimal container
        return str(os.getuid())


def seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def moment(text: str) -> datetime:
    """Parse a time in ISO 8601 as an aware datetime. Raises ArgumentTypeError, also if it has no zone."""
    try:
        parsed = datetime.fromisoformat(text)
        if parsed.tzinfo is not None:
            parsed.astimezone(UTC) + timedelta(milliseconds=1)  # which is what rounding up may add
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is not in the years 1 to 9999 of UTC") from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in ISO 8601, such as 2030-01-01T09:00Z") from None
    if parsed.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone: append Z for UTC, or an offset such as +01:00")
    return parsed


_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,6})([dhms])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 30d, 12h, 45m or 90s")
    length = timedelta(**{_UNITS[match[2]]: int(match[1])})
    ago(text, length)
    return length


def ago(text: str, length: timedelta) -> datetime:
    """Return the time so long ago. Raises ArgumentTypeError, which names the `text`, if it is before the year 1."""
    try:
        return datetime.now(UTC) - length
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} ago was before the year 1") from None


def integer(most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 1 to `most`."""

    def parse(text: str) -> int:
        if not (re.fullmatch(r"\d{1,20}", text, re.ASCII) and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
        return int(text)

    return parse


limit = integer(100_000)


def number(unit: str, least: float, most: float) -> Callable[[str], float]:
    """Return a parser of numbers of seconds or days, from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} from {least:g} to {most:g}")
        return number

    return parse


def body(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError("not JSON: too many brackets in brackets") from None
