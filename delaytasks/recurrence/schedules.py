"""Change schedules: apply those declared in code, define, pause, resume, delete, run once now, and backfill.

If the times change, the firing that was made ahead is cancelled and the next one is made by the new times, in the same
transaction. After any other change, the firing is made again for the same time. Firings that have begun or ended, or
are overdue, do not change.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from django.db import transaction
from django.db.models import Q

from .. import clock, databases
from ..calendars.wall_time import to_zone
from ..db import dialects, schedules, transitions
from ..db.retries import in_transaction
from ..exceptions import BadSchedule, BadTimeZone, ScheduleExists
from ..jobs import on_commit
from ..jobs.inputs import check_known, to_body, to_new_job
from ..jobs.schedule import schedule_row
from ..jobs.series import firing_prefix, firings, former_prefixes
from ..models import Job, Schedule, ScheduleRun, Topic
from ..states import State
from . import maker, registry
from .definition import Definition, body_text, past_times_of_row, terms_of_row, times_of_row
from .wall_times import Firing, parse_label

logger = logging.getLogger("delaytasks")
MOST_BACKFILLED = 10_000
PAGE = 500  # firings in one statement
MOST_NAMES = 20  # former names that a schedule remembers
_TIMES = ("tz", "cron", "rrule", "every_ms", "delay_ms", "period_ms", "repeat", "gap", "overlap", "start_at", "topic")
Source = Literal["code", "staff", "call"]
Kind = Literal["create", "change", "rename", "delete", "keep"]
RangeProblem = Literal["backwards", "future", "long", "unknown"]


class Change(NamedTuple):
    """A change that apply() makes to a schedule."""

    name: str
    kind: Kind


def find(name: str, *, using: str | None = None) -> Schedule:
    """Return the schedule with this name. Raises BadSchedule if there is none."""
    row = Schedule.objects.using(databases.alias(using)).filter(name=name).first()
    if row is None:
        raise BadSchedule(f"There is no schedule {name!r}. `manage.py delaytasks schedules list` names them.")
    return row


def next_firings(row: Schedule, count: int = 10, *, after: datetime | None = None) -> list[Firing]:
    """Return the next firings of a schedule, at most `count`, computed from its times. Raises BadSchedule, BadTimeZone.

    after   aware datetime: only later firings; None: now
    """
    times, moment = times_of_row(row), after or databases.now(databases.alias(row._state.db))
    firings: list[Firing] = []
    with suppress(OverflowError):  # the year 10000
        while len(firings) < count and (firing := times.next_after(moment)) is not None:
            firings.append(firing)
            moment = firing.due
    return firings


# -- schedules declared in code -----------------------------------------------------------------


def plan(*, using: str | None = None) -> list[Change]:
    """Return the changes that apply() would make. Raises BadSchedule as apply() does."""
    return _plan(databases.alias(using))[0]


def _plan(using: str) -> tuple[list[Change], dict[str, str]]:
    """Return the changes, and the renamed schedules as {old name: new name}."""
    of_plan = Schedule.objects.using(using).filter(Q(source=Schedule.Source.CODE) | Q(name__in=registry.declared()))
    rows, now = {row.name: row for row in of_plan}, databases.now(using)
    changes = []
    renamed: dict[str, str] = {}
    for name, each in registry.declared().items():
        old = _old_name(name, each.was, rows)
        if name in rows:
            _refuse_staff(rows[name])
            changes.append(Change(name, "change" if _set(copy.copy(rows[name]), each.definition, now) else "keep"))
        elif old is not None:
            if old in renamed:
                raise BadSchedule(
                    f"The schedules {renamed[old]!r} and {name!r} both have the former name {old!r}: remove it from "
                    "was= of one of them."
                )
            renamed[old] = name
            changes.append(Change(name, "rename"))
        else:
            changes.append(Change(name, "create"))
    gone = [row.name for row in rows.values() if row.source == Schedule.Source.CODE]
    kept = registry.declared().keys() | renamed.keys()
    return [*changes, *(Change(name, "delete") for name in sorted(gone) if name not in kept)], renamed


def _old_name(name: str, was: Sequence[str], rows: Mapping[str, Schedule]) -> str | None:
    """Return the stored name of a renamed schedule: one in was=, or the newer name if a deployment was rolled back."""
    of_code = {row.name: row for row in rows.values() if row.source == Schedule.Source.CODE}
    back = (row.name for row in of_code.values() if name in row.former_names.split())
    return next((old for old in (*was, *back) if old in of_code and old not in registry.declared()), None)


def apply(*, using: str | None = None) -> list[Change]:
    """Store the schedules declared in code, in one transaction. Delete stored ones that are no longer declared.

    Schedules that staff have paused stay paused. Raises BadSchedule if staff have defined a schedule of the same name.
    """
    using = databases.alias(using)
    return in_transaction(using, lambda: _apply(using))


def _apply(using: str) -> list[Change]:
    lock_apply(using)
    for name in sorted(registry.declared()):  # before the rows, as define() does
        lock_name(using, name)
    maker.refresh_zones(using)  # first: a firing that is not due at its wall time counts as moved by a person
    changes, renamed = _plan(using)
    for old, new in renamed.items():
        _rename(using, old, new)
    for name, kind in changes:
        declared = registry.declared().get(name)
        if kind == "delete" or declared is None:
            delete(find(name, using=using), using=using)
            continue
        if kind != "keep":
            define(declared.definition, source="code", using=using)
    return changes


def lock_apply(using: str) -> None:
    """Lock apply() to the end of the transaction: two hosts of a deployment may call it at once."""
    dialects.lock_name(using, "delaytasks.schedules.apply")


def _rename(using: str, old_name: str, name: str) -> None:
    """Rename the row. Firings made ahead are made again, because their keys have the old name."""
    row = Schedule.objects.using(using).select_for_update().get(name=old_name)
    withdrawn = _withdraw(using, row, row.topic, row.tz)
    others = [each for each in row.former_names.split() if each not in (name, old_name)]
    row.name, row.former_names = name, " ".join([old_name, *others[: MOST_NAMES - 1]])
    _save(using, row, withdrawn)


def _refuse_staff(row: Schedule) -> None:
    if row.source != Schedule.Source.CODE:
        raise BadSchedule(
            f"The schedule {row.name!r} is declared in code, but one of this name was defined by staff: rename one."
        )


# -- one schedule -------------------------------------------------------------------------------


def define(
    definition: Definition, *, source: Source = "staff", using: str | None = None, restarts: bool = False
) -> Schedule:
    """Create the schedule of this name, or change it, and make its next firing. Return its row.

    restarts   True: times without a start begin now, not at the stored start

    A definition that changes nothing writes nothing. Raises UnknownTopic, BadBody, BodyTooLarge; and BadSchedule if it
    would never run. One that is declared in code is then stored as ended: it may have run in other environments.
    """
    using = databases.alias(using)
    check_known(using, definition.topic)
    to_body(definition.body)
    return in_transaction(using, lambda: _define(definition, source, using, restarts))


def _define(definition: Definition, source: Source, using: str, restarts: bool) -> Schedule:
    lock_name(using, definition.name)
    row = Schedule.objects.using(using).select_for_update().filter(name=definition.name).first()
    if row is None:
        return insert(using, _new_row(definition, source, databases.now(using)))
    old, now = {name: getattr(row, name) for name in _TIMES}, clock.from_ms(databases.now_ms(using))
    if not _set(row, definition, now, restarts=restarts) and not row.problem:
        return row
    moved = {name for name, value in old.items() if getattr(row, name) != value}
    made_until = definition.made_until(now) if "start_at" in moved else now
    if moved - {"topic"}:
        _check_runs(row, made_until)
    withdrawn = _withdraw(using, row, old["topic"], old["tz"], now)
    if moved:
        withdrawn, row.made_until, row.made_label = [], made_until, ""
    if (row.topic, row.tz) != (old["topic"], old["tz"]):
        row.runs_unknown_until = now
    _save(using, row, withdrawn)
    return row


def change(row: Schedule, terms: dict[str, Any], *, using: str | None = None) -> Schedule:
    """Change fields of a schedule, named as in Definition, on behalf of staff. Return its row. Raises as define().

    Times of another kind begin now, unless a start is given or the stored one is still to come.
    """
    using, definition = databases.alias(using), Definition(**(terms_of_row(row) | terms))
    has_started = row.start_at <= databases.now(using)
    if "start" not in terms and has_started and _kind(definition.columns()) != _kind(vars(row)):
        definition = replace(definition, start=None)
    return define(definition, using=using, restarts=True)


def _set(row: Schedule, definition: Definition, now: datetime, *, restarts: bool = False) -> bool:
    """Set the row's columns. Return whether one changed; starts are compared in whole milliseconds.

    Without a start, times of another kind start now, and so do those whose former start has not come yet.
    """
    new = definition.columns()
    restarts = restarts or _kind(new) != _kind(vars(row))
    start = definition.start or (now if restarts else min(row.start_at, now))
    if clock.to_ms(start) != clock.to_ms(row.start_at):
        new["start_at"] = start
    changed = {name for name, value in new.items() if _comparable(getattr(row, name)) != _comparable(value)}
    for name in changed:
        setattr(row, name, new[name])
    return bool(changed)


def _kind(columns: Mapping[str, Any]) -> str:
    """Return which of the columns has the times of a schedule."""
    return next((name for name in ("cron", "rrule", "every_ms") if columns[name]), "period_ms")


def _comparable(value: Any) -> Any:
    return value if isinstance(value, datetime) else body_text(value)  # True == 1 would hide a change of the body


def check_runs(definition: Definition, row: Schedule | None) -> None:
    """Raise BadSchedule if a new schedule, or `row` after this change by define(restarts=True), would never run."""
    now = databases.now(databases.alias())
    if row is None:
        _check_runs(_new_row(definition, "staff", now))
        return
    changed = copy.copy(row)
    _set(changed, definition, now, restarts=True)
    if any(getattr(changed, name) != getattr(row, name) for name in _TIMES if name != "topic"):
        _check_runs(changed, definition.made_until(now))


def _check_runs(row: Schedule, after: datetime | None = None) -> None:
    if times_of_row(row).next_after(row.made_until if after is None else after) is not None:
        return
    if row.source != Schedule.Source.CODE:
        raise BadSchedule(f"The schedule {str(row)!r} would never run: its times are all in the past.")
    logger.warning("schedule %s does not run: its times are all in the past", row)


def create(definition: Definition, *, using: str | None = None) -> Schedule:
    """Create a schedule on behalf of staff. Raises ScheduleExists if the name is in use, and as define() does."""
    using = databases.alias(using)

    def check_and_define() -> Schedule:
        lock_name(using, definition.name)
        if Schedule.objects.using(using).filter(name=definition.name).exists():
            raise ScheduleExists(f"There is a schedule {definition.name!r} already: change it, or use another name.")
        return define(definition, using=using)

    return in_transaction(using, check_and_define)


def lock_name(using: str, name: str) -> None:
    """Lock the name to the end of the transaction, so that two calls cannot create the same schedule.

    To be called before the schedule's row is locked, because define() locks the name first.
    """
    dialects.lock_name(using, f"delaytasks.schedule:{name}")


def _new_row(definition: Definition, source: Source, now: datetime) -> Schedule:
    return new_row(definition, source=source, start=definition.start or now, made_until=definition.made_until(now))


def new_row(definition: Definition, *, source: Source, start: datetime, made_until: datetime) -> Schedule:
    """Return a row that is not stored yet. Its firings are those after `made_until`."""
    return Schedule(
        **definition.columns(), source=source, start_at=start, made_until=made_until,
        producer=transitions.current_producer(),
    )  # fmt: skip


def insert(using: str, row: Schedule) -> Schedule:
    """Store a new row and make its first firing, in the caller's transaction. Raises BadSchedule as define()."""
    _check_runs(row)
    former = firings(using, row.topic, firing_prefix(row))  # of a deleted schedule of this name
    if former.exists():
        row.runs_unknown_until = row.made_until  # it may have had another zone
    # The name is locked: only a REPEATABLE READ transaction that began before another one stored the same name can meet
    # its row. With ON CONFLICT, PostgreSQL reports that as a conflict, which is retried, not as an IntegrityError.
    rows = Schedule.objects.using(using)
    rows.bulk_create([row], update_conflicts=True, unique_fields=["name"], update_fields=["name"])
    running = former.filter(state=State.RESERVED).values_list("id", "attempt").last()
    job_id, attempt = running or (None, 0)
    ScheduleRun.objects.using(using).create(schedule=row, job_id=job_id, attempt=attempt)
    maker.make(using, [row.pk])
    row.refresh_from_db(using=using)
    return row


def _save(using: str, row: Schedule, withdrawn: Sequence[Firing] = ()) -> None:
    """Save a changed, locked row with a new version. Make the withdrawn firings again, and the next firing."""
    row.version += 1
    row.ended, row.problem = False, ""
    row.save(using=using)
    maker.insert(using, [maker.new_firing(row, firing) for firing in withdrawn])
    maker.make(using, [row.pk])
    row.refresh_from_db(using=using)


def _withdraw(using: str, row: Schedule, topic: str, tz: str, now: datetime | None = None) -> list[Firing]:
    """Cancel the firings made ahead and return them. Firings that a person has moved or cancelled are not changed.

    now   firings due later are cancelled; None: the current time. If the times change, pass the same time from which
          new firings are made: a firing between two readings of the clock would be lost
    """
    withdrawn, prefix = [], firing_prefix(row)
    now_ms = databases.now_ms(using) if now is None else clock.to_ms(now)
    for job_id, key, due_ms in schedules.find_upcoming(using, topic, prefix, now_ms):
        firing = _at_its_time(key.removeprefix(prefix), due_ms, tz)
        if firing is None:
            continue
        done = transitions.cancel_delayed(using, job_id, actor="", reason="schedule changed")
        if done is not None:
            withdrawn.append(firing)
            on_commit.cancelled(using, [done])
    return withdrawn


def _at_its_time(label: str, due_ms: int, tz: str) -> Firing | None:
    """Return the firing if it is due at its wall time; None if it was rescheduled, or made by run_now()."""
    try:
        firing = parse_label(label, to_zone("UTC"))
        with suppress(BadTimeZone):  # a schedule whose zone was removed can still be deleted, or get another zone
            firing = parse_label(label, to_zone(tz))
            return firing if clock.to_ms(firing.due) == due_ms else None
    except ValueError:
        return None
    return firing._replace(due=clock.from_ms(due_ms))


def pause(name: str, *, using: str | None = None) -> bool:
    """Pause a schedule: no firings are made, the firings made ahead are cancelled, and overdue ones are skipped.

    Return False if it was paused already.
    """
    return _set_paused(name, True, using)


def resume(name: str, *, using: str | None = None) -> bool:
    """Resume a schedule. Firings due while it was paused are not made. Return False if it was not paused."""
    return _set_paused(name, False, using)


def _set_paused(name: str, paused: bool, using: str | None) -> bool:
    using = databases.alias(using)
    with transaction.atomic(using):
        row = Schedule.objects.using(using).select_for_update().filter(name=name).first()
        if row is None:
            find(name, using=using)
            return False
        if row.paused == paused:
            return False
        row.paused, now = paused, clock.from_ms(databases.now_ms(using))
        if not paused:
            row.made_until = max(row.made_until, now)
        elif _withdraw(using, row, row.topic, row.tz, now):
            row.made_until, row.made_label = now, ""
        _save(using, row)
    return True


def delete(row: Schedule, *, using: str | None = None) -> None:
    """Delete a schedule and cancel its firings that are not due yet. Due firings still run."""
    using = databases.alias(using)
    rows = Schedule.objects.using(using).filter(pk=row.pk)
    with transaction.atomic(using):
        locked = rows.select_for_update().first()  # all changes lock a schedule before its jobs
        if locked is not None:
            _withdraw(using, locked, locked.topic, locked.tz)
            rows.delete()


def run_now(name: str, *, using: str | None = None, by: str = "", request_ms: int | None = None) -> Job:
    """Run a schedule's job once now, in addition to its times. Return the job's row.

    request_ms   a time that identifies the request: if it is repeated, its first job is returned, also after its end.
                 The caller has opened a transaction. None: each call is a request of its own
    """
    using = databases.alias(using)
    row = find(name, using=using)
    ttr = None if row.ttr_ms is None else row.ttr_ms / 1000
    key = f"{firing_prefix(row)}now:{databases.now_ms(using) if request_ms is None else request_ms}"
    if request_ms is not None:
        lock_name(using, name)
        first = Job.objects.using(using).filter(topic=row.topic, key=key).first()
        if first is not None:
            return first
    new = to_new_job(row.topic, key=key, delay=0, body=row.body, ttr=ttr)
    new = new._replace(subject_label=row.subject_label or "", subject_pk=row.subject_pk or "")
    return schedule_row(using, new, "keep", by)


def backfill(name: str, start: datetime, end: datetime, *, using: str | None = None) -> int:
    """Make the firings from `start` to `end`, both included, that never ran; they are due at once. Return their number.

    missed= and within= do not apply to them. Raises BadSchedule for a range that is not in the past, that has more than
    10,000 firings, or that has firings whose jobs may have been deleted after they ran.
    """
    using = databases.alias(using)
    with transaction.atomic(using):
        Schedule.objects.using(using).select_for_update().filter(name=name).first()  # only one backfill at a time
        row, now_ms = find(name, using=using), databases.now_ms(using)
        firings = past_firings(row, start, end, using=using)
        made = _made(row, firings, using)
        new = [maker.new_firing(row, firing, now_ms) for firing in firings if firing not in made]
        return sum(len(maker.insert(using, new[n : n + PAGE])) for n in range(0, len(new), PAGE))


def past_firings(row: Schedule, start: datetime, end: datetime, *, using: str | None = None) -> list[Firing]:
    """Return the firings from `start` to `end`, both included, whether or not they ran. Raises as backfill()."""
    now = databases.now(databases.alias(using))
    for moment in (start, end):
        if not isinstance(moment, datetime) or moment.utcoffset() is None:
            raise BadSchedule("backfill needs aware datetimes for its range.")
    span = f"backfill from {start.isoformat()} to {end.isoformat()}"
    if start > end:
        raise _bad_range("backwards", f"{span}: give the earlier time first.")
    if end > now:
        raise _bad_range("future", f"{span}: give a range in the past.")
    if start.year < 1970:
        raise BadSchedule(f"{span}: give times from 1970 on.")
    firings, unknown_until = _firings_in(row, start, end), unknown_until_of(row)
    if unknown_until is not None and firings and firings[0].due <= unknown_until:
        until = unknown_until.isoformat(timespec="seconds")
        raise _bad_range(
            "unknown",
            f"{span}: there is no record of the runs up to {until}. The schedule had another time zone or topic, "
            "was defined again, or its old jobs were deleted. Give times after that.",
        )
    return firings


def unknown_until_of(row: Schedule) -> datetime | None:
    """Return the latest time for which it is unknown which firings ran; None if all are known."""
    deleted = Topic.objects.using(row._state.db).filter(name=row.topic).values_list("runs_deleted_until", flat=True)
    return max(filter(None, [row.runs_unknown_until, deleted.first()]), default=None)


def _bad_range(problem: RangeProblem, text: str) -> BadSchedule:
    error = BadSchedule(text)
    error.range_problem = problem
    return error


def count_made(row: Schedule, firings: Sequence[Firing], *, using: str | None = None) -> int:
    """Return how many of these firings ran or are live: backfill() does not make them again."""
    return len(_made(row, firings, databases.alias(using)))


def _made(row: Schedule, firings: Sequence[Firing], using: str) -> set[Firing]:
    """Return those firings that ran or are live, under the schedule's name or a former one."""
    prefixes = [firing_prefix(row), *former_prefixes(row)]
    by_key = {prefix + firing.label: firing for firing in firings for prefix in prefixes}
    keys = list(by_key)
    unknown_ms = maker.unknown_ms(row)
    pages = (schedules.find_made(using, row.topic, keys[n : n + PAGE], unknown_ms) for n in range(0, len(keys), PAGE))
    return {by_key[key] for page in pages for key in page}


def _firings_in(row: Schedule, start: datetime, end: datetime) -> list[Firing]:
    times, firings = past_times_of_row(row), []
    firing = times.next_after(start - timedelta(milliseconds=1))
    while firing is not None and firing.due <= end:
        firings.append(firing)
        if len(firings) > MOST_BACKFILLED:
            raise _bad_range("long", f"backfill: more than {MOST_BACKFILLED:,} firings; give a shorter range.")
        firing = times.next_after(firing.due)
    return firings
