"""Subcommand for the triggers of declared timeouts: timeouts triggers install, remove and show."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError

from ...db.retries import waited_too_long
from ...exceptions import BadInput
from ...timeouts.triggers import installation
from . import arguments, audited
from .output import Answer, Options, table

ACTIONS = ("install", "remove", "show")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "tables", nargs="*", default=[], metavar="TABLE",
        help=f"triggers {'|'.join(ACTIONS)}: the tables (default: all)",
    )  # fmt: skip


def run(options: Options, using: str) -> Answer:
    match options["topic"]:
        case "install":
            return _change("installed", installation.install, using, options["tables"])
        case "remove":
            return _change("removed", installation.remove, using, options["tables"])
        case "show":
            return _show(using)
    raise CommandError(f"Say what to do with the triggers: {', '.join(ACTIONS)}.", returncode=arguments.USAGE)


def _unless_busy(call: Any, using: str, names: list[str]) -> list[str]:
    try:
        return list(call(using, names))
    except OperationalError as error:
        if not waited_too_long(error):
            raise
        raise CommandError(
            f"A transaction has been writing to the table for over {installation.LOCK_TIMEOUT_SECONDS} s. Nothing was "
            "changed on that table. Try again when it has ended."
        ) from error


def _change(what: str, do: Any, using: str, chosen: list[str]) -> Answer:
    with audited.many(using, f"timeouts.triggers_{what}", "timeouts") as after:
        after["tables"] = chosen or "all"
        try:
            names = after["tables"] = _unless_busy(do, using, chosen)
        except BadInput:
            after.clear()
            raise
        if not names:
            after.clear()
    return Answer({what: names}, f"{what}: {', '.join(names) or 'nothing'}")


def _show(using: str) -> Answer:
    reports = installation.report(using)
    data = [
        {"table": each.table_name, "columns": each.columns, "state": each.state, "marks": each.marks,
         "problem": each.problem}
        for each in reports
    ]  # fmt: skip
    rows = [(each.table_name, each.state, each.marks, ", ".join(each.columns)) for each in reports]
    return Answer(data, table(("table", "triggers", "marks", "watched columns"), rows, right=("marks",)))
