"""Convert the entries of Celery beat to Schedules, and report what cannot be converted."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery.schedules import crontab, schedule
from django.db import transaction
from django.utils import timezone

from .. import databases, handlers
from ..clock import from_ms, to_ms
from ..exceptions import BadInput
from ..jobs.inputs import check_known, to_body
from ..models import Schedule
from ..recurrence import schedules
from ..recurrence.definition import MAX_NAME, Definition
from .beat_entries import Entry

_OWN = ("celery.backend_cleanup", "delaytasks.move_due", "delaytasks.sweep")  # tasks that stay in beat
_WEEKDAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")
_ALL = {
    "minute": set(range(60)), "hour": set(range(24)), "day_of_month": set(range(1, 32)),
    "month_of_year": set(range(1, 13)), "day_of_week": set(range(7)),
}  # fmt: skip


@dataclass(frozen=True)
class Conversion:
    """The result of converting an entry.

    name         of the entry
    definition   of the schedule; None: the entry is not converted
    problem      why it is not converted, or ""
    notes        what of the entry is lost or changes
    paused       whether the schedule is paused, because the entry is disabled
    is_due       whether a run is due that beat has not sent
    stored       True: there is such a schedule already
    """

    name: str
    definition: Definition | None = None
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    paused: bool = False
    is_due: bool = False
    stored: bool = False


class _Times(NamedTuple):
    terms: dict[str, Any]  # arguments of Definition
    notes: list[str]


class NotConvertible(Exception):
    """The entry cannot be converted; the message says why."""


def convert(
    entries: Iterable[Entry], topics: Mapping[str, str], *, using: str | None = None, write: bool = False
) -> list[Conversion]:
    """Convert each entry and return the results. If `write`, store the new schedules; existing ones are not changed.

    topics   task -> topic; a task that is not in it becomes a topic of the same name
    """
    using, names = databases.alias(using), set[str]()
    results = [_convert_entry(entry, topics.get(entry.task, entry.task), using, names) for entry in entries]
    for each in results if write else ():
        if each.definition is not None and not each.stored:  # staff may have resumed one that is stored
            _store(each, each.definition, using)
    return results


def _store(conversion: Conversion, definition: Definition, using: str) -> None:
    with transaction.atomic(using):
        schedules.create(definition, using=using)
        if conversion.paused:
            schedules.pause(definition.name, using=using)
        elif conversion.is_due:
            schedules.run_now(definition.name, using=using)


def _convert_entry(entry: Entry, topic: str, using: str, names: set[str]) -> Conversion:
    try:
        definition, notes = _convert(entry, topic, using)
        stored = _check(definition, entry.task, using, names)
        due = None if stored else _due_since(entry, definition)
    except (NotConvertible, BadInput) as error:
        return Conversion(entry.name, problem=str(error))
    names.add(definition.name)
    if not entry.enabled:
        notes.append("it is disabled: the schedule is paused")
    if due is not None:
        notes.append(f"it is due since {due.isoformat(timespec='seconds')}: it runs once when the schedule is stored")
    return Conversion(
        entry.name, definition, notes=notes, paused=not entry.enabled, is_due=due is not None, stored=stored
    )


def _due_since(entry: Entry, definition: Definition) -> datetime | None:
    """Return since when a run is due that beat has not sent; None if there is none, or the last run is not known."""
    now = timezone.now()
    if entry.last_run_at is None or not entry.enabled or (entry.begin is not None and entry.begin > now):
        return None
    last = from_ms(to_ms(entry.last_run_at))  # in whole ms, as the times are
    firing = definition.times(definition.start or last).next_after(last)
    return firing.due if firing is not None and firing.due <= now else None


def _check(definition: Definition, task: str, using: str, names: set[str]) -> bool:
    """Return whether the schedule is stored already. Raises NotConvertible, BadInput."""
    if definition.name in names:
        raise NotConvertible(f"another entry becomes the schedule {definition.name!r} too: rename one in beat")
    row = Schedule.objects.using(using).filter(name=definition.name).first()
    if row is not None and row.source != Schedule.Source.STAFF:
        owner = "was made by a call of schedule()" if row.source == Schedule.Source.CALL else "is declared in code"
        raise NotConvertible(f"the schedule {definition.name!r} {owner} already")
    if row is not None and _differs(row, definition):
        raise NotConvertible(
            f"there is another schedule {definition.name!r} of staff: delete it to carry over the entry"
        )
    if definition.topic not in handlers.known():
        raise NotConvertible(
            f'no handler: write @handler("{definition.topic}") that does what the task does, or choose another topic '
            f"with --topic {task}=TOPIC"
        )
    check_known(using, definition.topic)
    return row is not None


def _differs(row: Schedule, definition: Definition) -> bool:
    """Return whether the stored terms differ. The start of an interval is not compared: it is beat's last run."""
    other_start = definition.delay is not None and definition.start != row.start_at
    return other_start or any(getattr(row, name) != value for name, value in definition.columns().items())


def _convert(entry: Entry, topic: str, using: str) -> tuple[Definition, list[str]]:
    if entry.problem:
        raise NotConvertible(entry.problem)
    if entry.task in _OWN:
        raise NotConvertible(f"{entry.task} stays in beat")
    if entry.end is not None and entry.end <= timezone.now():
        raise NotConvertible(f"it expired at {entry.end.isoformat()}")
    if entry.one_off and not _is_clocked(entry.schedule):
        raise NotConvertible("one_off: schedule() one job instead")
    terms, notes = _times(entry)
    within, lost = _options(entry)
    if entry.end is not None:
        notes.append(f"its end at {entry.end.isoformat()} is lost: pause or delete the schedule then")
    body = json.loads(to_body({"args": entry.args, "kwargs": entry.kwargs}))  # as it is stored: with lists for tuples
    return Definition(
        name=_name(entry.name), topic=topic, tz=entry.tz, body=body,
        missed="last", running="allow", within=within, **terms,
    ), [*notes, *lost]  # fmt: skip


def _name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:MAX_NAME]


def _options(entry: Entry) -> tuple[timedelta | None, list[str]]:
    """Return the time within which a run must begin (None: no limit), and a note about the options that are lost."""
    expires = entry.options.get("expires")
    is_duration = isinstance(expires, int | float | timedelta)
    within = timedelta(seconds=expires) if isinstance(expires, int | float) else expires if is_duration else None
    lost = sorted(entry.options.keys() - ({"expires"} if is_duration else set()))
    return within, [f"the options {', '.join(lost)} are lost: @handler has its own"] if lost else []


# -- times --------------------------------------------------------------------------------------


def _is_clocked(times: Any) -> bool:
    return isinstance(getattr(times, "clocked_time", None), datetime)


def _times(entry: Entry) -> _Times:
    times = entry.schedule
    if _is_clocked(times):
        if times.clocked_time <= timezone.now():
            raise NotConvertible(f"its only time, {times.clocked_time.isoformat()}, has passed")
        return _Times({"delay": 0, "start": times.clocked_time}, [])
    if type(times) is crontab or type(times).__module__ == "django_celery_beat.tzcrontab":
        return _cron_terms(entry, times)
    if type(times) is schedule:
        return _interval_terms(entry, times)
    raise NotConvertible(f"{type(times).__name__} is neither an interval nor a crontab")


def _interval_terms(entry: Entry, times: schedule) -> _Times:
    notes = ["relative is lost: runs are counted from the start, not from round times"] if times.relative else []
    return _Times({"every": times.run_every, "start": _future_start(entry) or entry.last_run_at}, notes)


def _cron_terms(entry: Entry, times: crontab) -> _Times:
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    fields = {name: _cron_field(name, getattr(times, f"_orig_{name}"), getattr(times, name)) for name in names}
    # Celery needs a match of both the day of the month and the day of the week, cron a match of either.
    if "*" not in (fields["day_of_month"], fields["day_of_week"]):
        return _Times({"rrule": _rule(times), "start": _future_start(entry)}, [])
    return _Times({"cron": " ".join(fields.values()), "start": _future_start(entry)}, [])


def _future_start(entry: Entry) -> datetime | None:
    return entry.begin if entry.begin is not None and entry.begin > timezone.now() else None


def _cron_field(name: str, given: Any, values: set[int]) -> str:
    """Return the field of a cron expression with these values. Keeps "*/5": its times follow elapsed time."""
    if values == _ALL[name]:
        return "*"
    if isinstance(given, str) and re.fullmatch(r"\*/[1-9]\d?", given, re.ASCII):
        return given
    return ",".join(map(str, sorted(values)))


def _rule(times: crontab) -> str:
    """Return a recurrence rule for the days that match both the day of the month and the day of the week."""
    parts = {
        "BYMONTH": times.month_of_year, "BYMONTHDAY": times.day_of_month,
        "BYHOUR": times.hour, "BYMINUTE": times.minute,
    }  # fmt: skip
    texts = [f"{name}={','.join(map(str, sorted(values)))}" for name, values in parts.items()]
    days = ",".join(_WEEKDAYS[day] for day in sorted(times.day_of_week))
    return ";".join(["FREQ=DAILY", *texts, f"BYDAY={days}", "BYSECOND=0"])
