"""Read and write the clocks of rows. The caller holds the locks of the rows when it writes."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.db.models import BooleanField, Case, Q, Value, When

from .. import databases
from ..clock import from_ms, to_ms
from ..states import State
from ..timeouts.applied_declarations import Applied
from ..timeouts.desired_jobs import among, key_text
from ..timeouts.sync import keys_of
from . import clocks
from .clocks import Clock, Conditions, LiveJob, Segment

if TYPE_CHECKING:
    from ..models import SlaClock, SlaSegment
    from .declaration import SlaDeclaration

_NAMES = ("delaytasks_start", "delaytasks_pause", "delaytasks_stop")


def _model(name: str) -> Any:
    """Return one of the app's models, which can be imported only when Django's apps are loaded."""
    return apps.get_model("delaytasks", name)


class RowClock(NamedTuple):
    """A row of the model, with its stored and its current clock.

    text     primary key as text
    stored   the clock in the database; None: not started
    now      the clock by the row's conditions and jobs; None: not started
    closed   the segment that ends with a change from `stored` to `now`, or None
    retried  True: a person retried the dead job of the breach, which is live again
    """

    text: str
    stored: Clock | None
    now: Clock | None
    closed: Segment | None
    retried: bool = False

    @property
    def is_outdated(self) -> bool:
        return self.stored != self.now


def read(
    level: "SlaDeclaration", pks: Sequence[Any], using: str, known: Applied | None, *, noticed: bool = False
) -> list[RowClock]:
    """Return those of these rows that exist, with their clocks. Writes nothing.

    known   result of applied_declarations.find(): after `timeouts apply --overdue skip`, levels that were overdue are
            skipped
    """
    flags = _conditions(level, pks, using)
    stored = {each.subject_pk: to_clock(each) for each in stored_clocks(level, flags, using)}
    now_ms, skip_before_ms = databases.now_ms(using), known.skip_before_ms if known else 0
    ended, live = _jobs(level, stored, using, now_ms)
    found = []
    for text, matched in flags.items():
        before = stored.get(text)
        now, closed = clocks.evaluate(
            level, matched, before, ended.get(text), now_ms, live=(job := live.get(text)), noticed=noticed,
            skip_before_ms=skip_before_ms,
        )  # fmt: skip
        retried = (
            now is not None and job is not None and clocks.is_breach_handled(level, now)
            and skip_before_ms <= job.declared_ms == now.last_due_ms
        )  # fmt: skip
        found.append(RowClock(text, before, now, closed, retried))
    return found


def _conditions(level: "SlaDeclaration", pks: Sequence[Any], using: str) -> dict[str, Conditions]:
    """Return {primary key as text: the conditions that the row matches}."""
    matches = {name: _matches(each, name) for name, each in zip(_NAMES, level.conditions, strict=True)}
    found = among(level, pks, using).annotate(**matches).values_list("pk", *_NAMES)
    texts = ((key_text(level, pk), Conditions(*flags)) for pk, *flags in found)
    return {text: flags for text, flags in texts if text is not None}


def _matches(condition: Q | None, name: str) -> Any:
    """Return a boolean expression for a condition. Without a condition, all rows match `start`, and none `pause`."""
    if not condition:
        return Value(condition is not None or name == _NAMES[0], output_field=BooleanField())
    return Case(When(condition, then=Value(True)), default=Value(False), output_field=BooleanField())


def _clocks(level: "SlaDeclaration", texts: Iterable[str], using: str) -> Any:
    """Return the clocks of these rows, without those of another model that had the topic before."""
    found = _model("SlaClock").objects.using(using).filter(topic=level.topic, subject_label=level.label)
    return found.filter(subject_pk__in=list(texts))


def stored_clocks(level: "SlaDeclaration", texts: Iterable[str], using: str) -> "list[SlaClock]":
    return list(_clocks(level, texts, using))


def to_clock(row: "SlaClock") -> Clock:
    last_due_ms, awaited_due_ms = (None if due is None else to_ms(due) for due in (row.last_due, row.awaited_due))
    return Clock(
        row.state, to_ms(row.since), row.consumed_ms, row.done_part, last_due_ms, awaited_due_ms, row.noticed
    )  # fmt: skip


def segments(level: "SlaDeclaration", text: str, using: str) -> "list[SlaSegment]":
    """Return the past states of a row's clock, without the current one, oldest first."""
    found = _model("SlaSegment").objects.using(using).filter(clock__in=_clocks(level, [text], using))
    return list(found.order_by("pk"))


def _jobs(
    level: "SlaDeclaration", texts: Iterable[str], using: str, now_ms: int
) -> tuple[dict[str, int], dict[str, LiveJob]]:
    """Return the declared due time of each row's newest ended job, and its live job, of those that have such a time."""
    keys = {level.key_of(text): text for text in texts}
    jobs = _model("Job").objects.using(using).filter(
        topic=level.topic, key__in=list(keys), declared_due__isnull=False
    )  # fmt: skip
    columns = ("key", "state", "declared_due", "ended_at", "due_at", "attempt", "reserved_at")
    newest, live = {}, {}
    for key, state, declared, ended_at, due, attempt, reserved_at in jobs.order_by("pk").values_list(*columns):
        if ended_at is None:
            live[keys[key]] = _live(state, declared, due, reserved_at if attempt > 1 else None, now_ms)
        else:
            newest[keys[key]] = to_ms(declared)
    return newest, live


def _live(state: int, declared: datetime, due: datetime, again_at: datetime | None, now_ms: int) -> LiveJob:
    """Return a live job. It was put off if it waits beyond its declared time, or if this is not its first attempt.

    again_at   when the latest attempt began; None: it was the first
    """
    running = state == State.RESERVED
    put_off = again_at if running else due if due > declared and to_ms(due) > now_ms else None
    return LiveJob(to_ms(declared), running, None if put_off is None else to_ms(put_off))


# -- writing --------------------------------------------------------------------------------------


def save(level: "SlaDeclaration", rows: Sequence[RowClock], using: str) -> None:
    """Store the current clocks of these rows, and the segments that have ended."""
    changed = {row.text: row.now for row in rows if row.now is not None}
    if not changed:
        return
    model = _model("SlaClock")
    new = [
        model(topic=level.topic, subject_label=level.label, subject_pk=text, **_columns(clock))
        for text, clock in changed.items()
    ]
    names = list(_columns(next(iter(changed.values()))))
    model.objects.using(using).bulk_create(
        new, update_conflicts=True, unique_fields=["topic", "subject_label", "subject_pk"], update_fields=names
    )
    clock_ids = {each.subject_pk: each.pk for each in new}
    _add_segments({clock_ids[row.text]: row.closed for row in rows if row.closed is not None}, using)


def _columns(clock: Clock) -> dict[str, Any]:
    return {
        "state": clock.state, "since": from_ms(clock.since_ms), "noticed": clock.noticed,
        "consumed_ms": clock.consumed_ms, "done_part": clock.done_part,
        "last_due": None if clock.last_due_ms is None else from_ms(clock.last_due_ms),
        "awaited_due": None if clock.awaited_due_ms is None else from_ms(clock.awaited_due_ms),
    }  # fmt: skip


def _add_segments(closed: Mapping[int, Segment], using: str) -> None:
    """Store ended segments, given as {primary key of the clock: segment}."""
    model = _model("SlaSegment")
    model.objects.using(using).bulk_create(
        model(
            clock_id=clock_id, state=each.state, began_at=from_ms(each.began_ms), ended_at=from_ms(each.ended_ms),
            worked_ms=each.worked_ms, noticed=each.noticed,
        )
        for clock_id, each in closed.items()
    )  # fmt: skip


def delete_others(level: "SlaDeclaration", pks: Sequence[Any], existing: Sequence[str], using: str) -> None:
    """Delete the clocks of the rows of `pks` that no longer exist."""
    gone = {text for text, _ in keys_of(level, pks)}.difference(existing)
    if gone:
        _clocks(level, gone, using).delete()
