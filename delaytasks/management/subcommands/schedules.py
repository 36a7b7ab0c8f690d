"""Subcommand schedules, for recurring jobs: list, next, plan, apply, pause, resume, run, backfill and from-beat."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from django.core.management.base import CommandError, CommandParser

from ... import databases
from ...admin_log import Action
from ...calendars.wall_time import to_zone
from ...db.retries import in_transaction
from ...jobs import audit_log
from ...models import Schedule
from ...recurrence import schedules
from ...recurrence.definition import state_of
from . import arguments, audited
from .output import Answer, Options, Verb, printable, rfc3339, table

if TYPE_CHECKING:
    from ...celery import beat_migration

Returned = TypeVar("Returned")
ACTIONS = ("list", "next", "plan", "apply", "pause", "resume", "run", "backfill", "from-beat")
OF_ALL = ("list", "plan", "apply", "from-beat")  # the others are for one schedule


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="what to do; next, pause, resume, run and backfill need NAME")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the schedule's name")
    parser.add_argument("--count", type=arguments.limit, default=10, help="next: number of runs (default: 10)")
    parser.add_argument("--from", dest="start", type=arguments.moment, metavar="TIME", help="backfill: the first time")
    parser.add_argument("--to", dest="end", type=arguments.moment, metavar="TIME", help="backfill: the last time")
    parser.add_argument("--app", default="", help="from-beat: the Celery app, as for `celery -A`")
    parser.add_argument(
        "--topic", action="append", default=[], metavar="TASK=TOPIC", help="from-beat: the topic of a task's schedules"
    )
    parser.add_argument("--write", action="store_true", help="from-beat: store the schedules, not only show them")
    arguments.by(parser)


def _run(options: Options, using: str) -> Answer:
    action, name = options["action"], options["name"]
    if name and action in OF_ALL:
        raise CommandError(f"schedules {action} takes no name: it is for all schedules.", returncode=arguments.USAGE)
    match action:
        case "list":
            return _list(using)
        case "plan" | "apply":
            changes = schedules.plan(using=using) if action == "plan" else _apply(using)
            rows = [(change.kind, change.name) for change in changes]
            return Answer([change._asdict() for change in changes], table(("change", "schedule"), rows))
        case "from-beat":
            return _from_beat(options, using)
    if not name:
        raise CommandError(f"Give the name of the schedule: schedules {action} NAME.", returncode=arguments.USAGE)
    return _one(action, name, options, using)


def _one(action: str, name: str, options: Options, using: str) -> Answer:
    match action:
        case "next":
            return _next(name, options["count"], using)
        case "pause" | "resume":
            return _set_paused(name, action == "pause", using)
        case "run":
            by = arguments.by_of(options)
            job = _operate(name, Action.RUN_ONCE, using, lambda: schedules.run_now(name, using=using, by=by))
            return Answer({"id": job.pk, "key": job.key}, f"job {job.pk}  {job.key} is ready")
    if options["start"] is None or options["end"] is None:
        raise CommandError("Give the range: schedules backfill NAME --from TIME --to TIME.", returncode=arguments.USAGE)
    start, end = options["start"], options["end"]
    count = _operate(
        name, Action.BACKFILLED, using, lambda: schedules.backfill(name, start, end, using=using),
        lambda made: f"{made} from {start.isoformat()} to {end.isoformat()}",
    )  # fmt: skip
    return Answer({"name": name, "made": count}, f"{count} runs were made")


def _set_paused(name: str, paused: bool, using: str) -> Answer:
    action, change = (Action.PAUSED, schedules.pause) if paused else (Action.RESUMED, schedules.resume)
    changed = _operate(name, action, using, lambda: change(name, using=using))
    state = f"{'paused' if paused else 'running'}{'' if changed else ' already'}"
    return Answer({"name": name, "changed": changed}, f"{name} is {state}")


# -- changes, with entries in the audit log -----------------------------------------------------


def _operate(
    name: str, action: Action, using: str, do: Callable[[], Returned], reason: Callable[[Returned], str] = lambda _: ""
) -> Returned:
    """Call do() with the schedule locked, and log it, in one transaction. False means that nothing was changed."""

    def do_and_log() -> Returned:
        rows = Schedule.objects.using(using).select_for_update().filter(name=name)
        row = rows.first() or schedules.find(name, using=using)
        before = audit_log.schedule_state(row)
        result = do()
        if result is not False:
            row.refresh_from_db(using=using)
            after = audit_log.schedule_state(row)
            audited.write(using, row, action, reason=reason(result), before=before, after=after)
        return result

    return in_transaction(using, do_and_log)


def _apply(using: str) -> list[schedules.Change]:
    def names_of(changes: list[schedules.Change]) -> set[str]:
        return {change.name for change in changes if change.kind != "keep"}

    return _change_many(using, Schedule.Source.CODE, lambda: schedules.apply(using=using), names_of)


def _change_many(
    using: str, source: str, do: Callable[[], Returned], names_of: Callable[[Returned], set[str]]
) -> Returned:
    """Call do(), and log each schedule of this source that it has created, changed, renamed or deleted.

    names_of   returns the names of these schedules, from the result of do(): staff may change others meanwhile
    """

    def do_and_log() -> Returned:
        schedules.lock_apply(using)  # before the states are read: what another host applies is not ours
        before = _states(using, source)
        result = do()
        after, names = _states(using, source), names_of(result)
        for pk in sorted(before.keys() | after.keys()):
            old, new = before.get(pk), after.get(pk)
            named: Any = old if new is None else new
            if old != new and named["name"] in names:
                action = Action.CREATED if old is None else Action.DELETED if new is None else Action.CHANGED
                audited.write_named(
                    using, f"schedule.{action.lower()}", f"schedule {pk}", topic=named["topic"], name=named["name"],
                    before=old, after=new,
                )  # fmt: skip
        return result

    return in_transaction(using, do_and_log)


def _states(using: str, source: str) -> dict[int, Any]:
    rows = Schedule.objects.using(using).filter(source=source)
    return {row.pk: audit_log.schedule_state(row) | {"name": row.name} for row in rows}


def _from_beat(options: Options, using: str) -> Answer:
    from ...celery import beat_entries, beat_migration  # imported late: they load Celery

    pairs = [text.partition("=") for text in options["topic"]]
    for task, equals, topic in pairs:
        if not (task and equals and topic):
            raise CommandError(f"--topic {task}: write it as TASK=TOPIC.", returncode=arguments.USAGE)
    try:
        app = beat_entries.find(options["app"])
    except (ImportError, AttributeError, ValueError) as error:
        raise CommandError(
            f"--app {options['app']}: {error}. Give it as for `celery -A`.", returncode=arguments.USAGE
        ) from error
    entries, topics = beat_entries.read(app), {task: topic for task, _, topic in pairs}

    def convert() -> "list[beat_migration.Conversion]":
        return beat_migration.convert(entries, topics, using=using, write=options["write"])

    def names_of(conversions: "list[beat_migration.Conversion]") -> set[str]:
        return {each.definition.name for each in conversions if each.definition is not None}

    conversions = _change_many(using, Schedule.Source.STAFF, convert, names_of) if options["write"] else convert()
    data = [_conversion_data(each) for each in conversions]
    rows = [(each["entry"], each["schedule"] or "-", each["times"], "; ".join(each["notes"])) for each in data]
    before = sum(each.stored for each in conversions)
    now = sum(each.definition is not None for each in conversions) - before
    text = table(("entry", "schedule", "times", "not carried over"), rows)
    if before:
        text += f"\n{before} of {len(data)} were stored before"
    if now or not before:
        text += f"\n{now} of {len(data)} {'were stored' if options['write'] else 'can be stored: add --write'}"
    return Answer(data, printable(text))


def _conversion_data(each: "beat_migration.Conversion") -> dict[str, Any]:
    row = None if each.definition is None else Schedule(**each.definition.columns())
    return {
        "entry": each.name, "schedule": row and row.name, "topic": row and row.topic, "tz": row and row.tz,
        "times": "" if row is None else times_text(row), "notes": [each.problem] if each.problem else each.notes,
    }  # fmt: skip


def _list(using: str) -> Answer:
    rows, now = list(Schedule.objects.using(using).order_by("name")), databases.now(using)
    data = [
        {"name": row.name, "topic": row.topic, "times": times_text(row), "tz": row.tz, "source": row.source,
         "state": _state(row, now), "made_until": rfc3339(row.made_until)}
        for row in rows
    ]  # fmt: skip
    shown = [(each["name"], each["topic"], each["times"], each["tz"], each["source"], each["state"]) for each in data]
    return Answer(data, table(("schedule", "topic", "times", "zone", "source", "state"), shown))


def _next(name: str, count: int, using: str) -> Answer:
    row = schedules.find(name, using=using)
    firings = schedules.next_firings(row, count)
    zone = to_zone(row.tz)
    data: list[dict[str, Any]] = [
        {"wall": firing.label, "due_at": rfc3339(firing.due), "local": firing.due.astimezone(zone).isoformat()}
        for firing in firings
    ]
    shown = [(_short(firing.due.astimezone(zone)), _short(firing.due.astimezone(UTC))) for firing in firings]
    return Answer(data, printable(table((f"in {row.tz}", "in UTC"), shown)))


def _short(moment: datetime) -> str:
    return moment.strftime("%a %Y-%m-%d %H:%M:%S%z")


def times_text(row: Schedule) -> str:
    """Return the times of a schedule as one line: "cron 30 2 * * *"."""
    series = [
        f"{name} {value / 1000:g} s" for name, value in (("delay", row.delay_ms), ("period", row.period_ms)) if value
    ]
    if row.period_ms:
        series.append("without end" if row.repeat is None else f"repeat {row.repeat}")
    base = f"cron {row.cron}" if row.cron else f"rrule {row.rrule}" if row.rrule else ""
    if row.every_ms is not None:
        base = f"every {row.every_ms / 1000:g} s"
    return ", ".join(filter(None, [base, *series])) or "once"


def _state(row: Schedule, now: datetime) -> str:
    return f"stopped: {row.problem}" if row.problem else state_of(row, now)


VERBS = {
    "schedules": Verb(
        "Recurring jobs: list, show the next runs, apply those declared in code, pause, resume, run once, backfill "
        "past runs, migrate from Celery beat.",
        _arguments,
        _run,
    ),
}
