"""Subcommand for timeouts declared on models: timeouts plan, apply, reconcile, forget and triggers."""

import argparse
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError

from ...db.retries import waited_too_long
from ...exceptions import BadInput
from ...timeouts import applied_declarations, declarations, reconcile
from ...timeouts.declarations import Declaration
from ...timeouts.sync import Synced, aliases_of
from ...timeouts.triggers import installation
from . import arguments, audited
from .output import Answer, Options, Verb, table

ACTIONS = ("plan", "apply", "reconcile", "forget", "triggers")
TRIGGER_ACTIONS = ("install", "remove", "show")


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="what to do; forget needs TOPIC")
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="only this timeout (default: all)")
    parser.add_argument(
        "tables", nargs="*", default=[], metavar="TABLE",
        help=f"triggers {'|'.join(TRIGGER_ACTIONS)}: the tables (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--overdue", type=_overdue, metavar="run|skip|spread=TIME",
        help="apply: for rows whose due time has passed already: run their jobs now, skip them, or spread the jobs "
        "over a time, such as spread=10m",
    )  # fmt: skip


def _overdue(text: str) -> applied_declarations.Overdue:
    kind, _, time = text.partition("=")
    if kind == "spread" and time:
        return arguments.age(time)
    if text == "run":
        return "run"
    if text == "skip":
        return "skip"
    raise argparse.ArgumentTypeError(f"{text!r} is not run, skip or spread=TIME, such as spread=10m")


def _run(options: Options, using: str) -> Answer:
    action, topic = options["action"], options["topic"]
    if action == "triggers":
        return _triggers(options, using)
    if options["tables"]:
        raise CommandError(f"Give one topic only: timeouts {action} TOPIC.", returncode=arguments.USAGE)
    if action == "forget":
        return _forget(topic, using)
    chosen = _chosen(topic, using)
    match action:
        case "plan":
            return _plan(chosen, using)
        case "apply":
            return _apply(chosen, options["overdue"], using)
    with audited.many(using, "timeouts.reconciled", "timeouts", topic=topic) as after:
        after["topics"] = [each.topic for each in chosen]
        counts = reconcile.reconcile(using, chosen)
        after["jobs"] = _numbers(counts)
    return _synced(counts)


def _chosen(topic: str | None, using: str) -> list[Declaration]:
    """Return the declaration of a topic in a list; None: all. Raises CommandError, which names the declared topics."""
    here = [each for each in declarations.declarations() if using in aliases_of(each)]
    chosen = [each for each in here if topic in (None, each.topic)]
    if topic is not None and not chosen:
        known = ", ".join(each.topic for each in here) or "none"
        raise CommandError(
            f"{topic!r} is not declared here, or the system checks refuse it. Declared: {known}.",
            returncode=arguments.USAGE,
        )
    return chosen


def _plan(chosen: list[Declaration], using: str) -> Answer:
    plans, gone = reconcile.plan(using, chosen), applied_declarations.removed(using)
    rows = [tuple(each) for each in plans]
    rows += [(each.topic, "no longer declared", 0, 0, each.live, 0) for each in gone]
    data = [dict(zip(reconcile.Plan._fields, row, strict=True)) for row in rows]
    return Answer(data, table(("timeout", "state", "make", "move", "cancel", "overdue"), rows))


def _apply(chosen: list[Declaration], overdue: applied_declarations.Overdue | None, using: str) -> Answer:
    if isinstance(overdue, timedelta) and overdue <= timedelta(0):
        raise CommandError("--overdue: the time of spread must be more than 0.", returncode=arguments.USAGE)
    with audited.many(using, "timeouts.applied", "timeouts") as after:
        after |= {"topics": [each.topic for each in chosen], "overdue": str(overdue or "")}
        try:
            counts = reconcile.apply(using, overdue, chosen)
        except reconcile.OverdueRows as error:
            after.clear()
            return _refused(error)
        after |= {"topics": sorted(counts), "jobs": _numbers(counts)}
        if not counts:
            after.clear()  # all of them were in force already
    return _synced(counts)


def _refused(error: reconcile.OverdueRows) -> Answer:
    counts = sorted(error.counts.items())
    listed = ", ".join(f"{count} {'row' if count == 1 else 'rows'} of {topic}" for topic, count in counts)
    return Answer(
        {"overdue": error.counts}, "",
        f"Nothing was applied: the due time of {listed} has passed already. Choose what to do with them: "
        "--overdue run, --overdue skip or --overdue spread=10m.",
    )  # fmt: skip


def _synced(counts: dict[str, Synced]) -> Answer:
    rows = [(topic, *synced[:3], len(synced.locked_pks)) for topic, synced in sorted(counts.items())]
    names = ("timeout", "made", "moved", "cancelled", "locked")
    return Answer([dict(zip(names, row, strict=True)) for row in rows], table(names, rows))


def _numbers(counts: dict[str, Synced]) -> dict[str, Any]:
    """Return the numbers for the audit log: {topic: {"made": 1, "moved": 0, "cancelled": 0}}."""
    names = ("made", "moved", "cancelled")
    return {topic: {name: getattr(synced, name) for name in names} for topic, synced in sorted(counts.items())}


def _forget(topic: str | None, using: str) -> Answer:
    if not topic:
        raise CommandError("Give the topic: timeouts forget TOPIC.", returncode=arguments.USAGE)
    with audited.many(using, "timeouts.forgotten", "timeouts", topic=topic) as after:
        after["topics"] = [topic]
        try:
            counts = applied_declarations.forget(topic, using)
        except BadInput:
            after.clear()
            raise
        after |= counts._asdict()
    running = f", {counts.running} are running" if counts.running else ""
    return Answer({"topic": topic, **counts._asdict()}, f"{counts.cancelled} jobs of {topic} were cancelled{running}")


# -- triggers -----------------------------------------------------------------------------------


def _triggers(options: Options, using: str) -> Answer:
    match options["topic"]:
        case "install":
            return _change_triggers("installed", installation.install, using, options["tables"])
        case "remove":
            return _change_triggers("removed", installation.remove, using, options["tables"])
        case "show":
            return _show_triggers(using)
    raise CommandError(f"Say what to do with the triggers: {', '.join(TRIGGER_ACTIONS)}.", returncode=arguments.USAGE)


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


def _change_triggers(what: str, do: Any, using: str, chosen: list[str]) -> Answer:
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


def _show_triggers(using: str) -> Answer:
    reports = installation.report(using)
    data = [
        {"table": each.table_name, "columns": each.columns, "state": each.state, "marks": each.marks,
         "problem": each.problem}
        for each in reports
    ]  # fmt: skip
    rows = [(each.table_name, each.state, each.marks, ", ".join(each.columns)) for each in reports]
    return Answer(data, table(("table", "triggers", "marks", "watched columns"), rows, right=("marks",)))


VERBS = {
    "timeouts": Verb(
        "Timeouts declared on models: show what a change would do, apply it, reconcile, forget a removed one.",
        _arguments,
        _run,
    ),
}
