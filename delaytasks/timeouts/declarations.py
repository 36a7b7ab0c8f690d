"""The registry of the timeouts declared on models."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal

from django.db.models import Field, Model, Q

from ..calendars import WorkingDays, snapshot
from ..calendars.calendar import Calendar
from ..jobs.subjects import model_label
from . import conditions

Span = timedelta | WorkingDays | str  # a str is the name of a DurationField
IfPast = Literal["run", "skip"] | timedelta


@dataclass(frozen=True, eq=False)
class Declaration:
    """A timeout declared on a model: for each row that matches `while_`, one job that is due at `on` plus `after`.

    topic      str
    model      the model; jobs have its concrete model as their subject
    on         name of a DateTimeField of the model
    after      timedelta, WorkingDays, or the name of a DurationField: how long after `on` the job is due
    before     in the same forms: how long before `on`. If after and before are None, the job is due at `on`
    while_     Q: the rows that have a job
    if_past    for a due time that has passed already when it is noticed: "run", "skip", or a timedelta: run unless it
               passed longer ago
    calendar   Calendar in whose open time `after` and `before` count; None: elapsed time
    using      alias of the only database whose rows have jobs; None: each database that has jobs and the model's table
    """

    topic: str
    model: type[Model]
    on: str
    after: Span | None = None
    before: Span | None = None
    while_: Q = field(default_factory=Q)
    if_past: IfPast = "run"
    calendar: Calendar | None = None
    using: str | None = None

    # Five members that a subclass overrides if its due times are not columns of the row, as for a service level.

    computes_due_times = False  # True: due_times() computes due times, and `on` is not used

    @property
    def named_conditions(self) -> dict[str, Q]:
        """The conditions, by argument name, for the system checks."""
        return {"while_": self.while_}

    def due_times(self, pks: Sequence[Any], using: str) -> Iterator[tuple[str, int]]:
        """Yield (primary key as text, due time in ms since 1970) for the rows that have a job. Writes nothing."""
        raise NotImplementedError

    def before_sync(self, pks: Sequence[Any], using: str, *, noticed: bool) -> Sequence[tuple[str, int]] | None:
        """Prepare a sync of these rows. Called in its transaction, before due_times(), with the rows locked.

        noticed   True: no signal reported the change of the rows; a later comparison found it

        Returns the result of due_times() if it is known already. None: due_times() is called.
        """
        return None

    def outdated(self, pks: Sequence[Any], using: str) -> list[str]:
        """Return the primary keys, as text, of the rows for which before_sync() would write. Writes nothing."""
        return []

    @property
    def label(self) -> str:
        """The label of the jobs' subjects: "shop.order"."""
        return model_label(self.model)

    @property
    def concrete(self) -> type[Model]:
        concrete = self.model._meta.concrete_model
        assert concrete is not None
        return concrete

    @property
    def pk(self) -> "Field[Any, Any]":
        found = self.concrete._meta.pk
        assert found is not None
        return found

    @property
    def key_prefix(self) -> str:
        """The part of a job's key before the primary key: "order:"."""
        return f"{self.label.rpartition('.')[2]}:"

    @property
    def span(self) -> Span | None:
        return self.after if self.before is None else self.before

    @property
    def is_before(self) -> bool:
        return self.before is not None

    @property
    def duration_field(self) -> str | None:
        return self.span if isinstance(self.span, str) else None

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the arguments that determine jobs and due times. Equal in all processes with the same code.

        It covers a calendar's definition, but not the days that staff have changed, which are rows in the database.
        """
        hours = None if self.calendar is None else snapshot.definition(self.calendar)
        meaning = [
            self.label, self.on, repr(self.after), repr(self.before), conditions.canonical(self.while_),
            repr(self.if_past), hours,
        ]  # fmt: skip
        return hashlib.sha256(repr(meaning).encode()).hexdigest()

    @cached_property
    def paths(self) -> frozenset[str]:
        """The lookup paths of all fields that jobs depend on: {"state", "customer__active", "created_at"}."""
        own = {self.on, *filter(None, [self.duration_field])}
        return frozenset(own | conditions.paths(self.while_, self.model))

    @cached_property
    def watched_fields(self) -> frozenset[str]:
        """The names of the model's own fields whose change may make, move or cancel a job: {"state", "created_at"}."""
        pk = self.concrete._meta.pk
        return frozenset(
            pk.name if pk is not None and first == "pk" else first
            for first in (path.partition("__")[0] for path in self.paths)
        )

    @cached_property
    def watched_names(self) -> frozenset[str]:
        """The watched fields, by all names that update_fields accepts: {"customer", "customer_id"}."""
        found = [self.concrete._meta.get_field(name) for name in self.watched_fields]
        return frozenset(name for field in found for name in (field.name, getattr(field, "attname", field.name)))

    def pk_of(self, key: str) -> str | None:
        """Return the primary key, as text, in a job's key; None if the key is not that of a row."""
        return key.removeprefix(self.key_prefix) if key.startswith(self.key_prefix) else None

    def key_of(self, pk_text: str) -> str:
        return f"{self.key_prefix}{pk_text}"


_declarations: dict[str, Declaration] = {}
_affected: dict[type[Model], tuple[Declaration, ...]] = {}  # cache of affected_by()


def add(new: Declaration) -> None:
    """Register a declaration. It replaces one of the same topic."""
    _declarations[new.topic] = new
    _affected.clear()


def unregister(topic: str) -> None:
    """Unregister a declaration. For tests."""
    _declarations.pop(topic, None)
    _affected.clear()


def find(topic: str) -> Declaration | None:
    return _declarations.get(topic)


def registered() -> list[Declaration]:
    """Return all declarations, sorted by topic, including invalid ones."""
    return [_declarations[topic] for topic in sorted(_declarations)]


def declarations() -> list[Declaration]:
    """Return the valid declarations, sorted by topic. System checks report invalid ones, which have no effect."""
    from .validation import is_valid  # imported here, because it imports this module

    return [each for each in registered() if is_valid(each)]


def declarations_of(model: type[Model]) -> list[Declaration]:
    """Return the valid declarations on this model, or on a proxy of it."""
    return [each for each in declarations() if each.concrete is model._meta.concrete_model]


def affected_by(model: type[Model]) -> tuple[Declaration, ...]:
    """Return the valid declarations whose jobs may change when an instance of this model is saved or deleted.

    They are those on the model, on its proxies, on its parent models and on models that inherit from it.
    """
    if not _declarations:
        return ()
    if model not in _affected:
        concrete: Any = model._meta.concrete_model
        _affected[model] = tuple(
            each for each in declarations()
            if issubclass(concrete, each.concrete) or issubclass(each.concrete, concrete)
        )  # fmt: skip
    return _affected[model]
