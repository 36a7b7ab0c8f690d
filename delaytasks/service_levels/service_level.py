"""ServiceLevel, the result of @sla: query how much working time rows have consumed and have left."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.db import router
from django.db.models import Model

from .. import databases
from ..clock import from_ms
from ..exceptions import BadInput, NoOpenHours
from ..handlers import Skip
from ..jobs.asynchronous import asynchronous_method
from ..jobs.handles import Handle
from ..jobs.subjects import Instance, pk_text, to_subject
from ..timeouts import applied_declarations, declarations
from ..timeouts.fire import GONE
from ..timeouts.statements import UNMET
from . import clocks, store
from .clocks import MS, Clock
from .declaration import SlaDeclaration

if TYPE_CHECKING:
    from ..models import SlaSegment
    from ..worker.attempt import RunningJob

Function = TypeVar("Function", bound=Callable[..., Any])


class SlaStatus(NamedTuple):
    """The state of a row's service level.

    state         "running", "paused" or "stopped"
    consumed      timedelta of working time
    remaining     timedelta of working time until the breach; zero or negative after it
    breaches_at   aware datetime: when the target is reached if the clock keeps running; None if it does not run, or if
                  the calendar has no such time
    """

    state: str
    consumed: timedelta
    remaining: timedelta
    breaches_at: datetime | None

    @property
    def is_breached(self) -> bool:
        """Whether the target was reached, even if the clock has stopped since."""
        return self.remaining <= timedelta(0)


class SlaEvent(NamedTuple):
    """A warning or a breach: the second argument of a service level's function.

    part      float, the part of the target that was reached, such as 0.9; 1.0 for the breach
    status    SlaStatus of the row at this moment
    job       RunningJob
    """

    part: float
    status: SlaStatus
    job: "RunningJob"

    @property
    def is_breach(self) -> bool:
        """Whether the whole target was reached."""
        return self.part >= 1


class ServiceLevel(Handle[Function]):
    """A service level: the handle of its topic, with methods for the status of rows.

    The methods read stored clocks, so that they show a change by update() only after the next reconciliation. In async
    code use astatus(), astatuses(), aremaining() and ahistory().
    """

    def __init__(self, declaration: SlaDeclaration, function: Function) -> None:
        super().__init__(declaration.topic, function)
        self.declaration = declaration

    if not TYPE_CHECKING:

        def schedule(self, *args: Any, **kwargs: Any) -> None:
            """Raise BadInput: saving a row schedules its job."""
            raise BadInput(f"{self.topic} is a service level: saving its rows schedules their jobs. Use run_now(row).")

    def status(self, row: Instance) -> SlaStatus | None:
        """Return the status of a row; None if its clock has not started, or if its database has no jobs.

        Raises BadInput if the row is not saved, or if it is of another model.
        """
        return next(iter(self.statuses([row]).values()), None)

    def statuses(self, rows: Iterable[Instance]) -> dict[str, SlaStatus]:
        """Return {str of the primary key: SlaStatus} of those rows whose clock has started.

        The primary key is that of the service level's model, also for rows of a model that inherits from it. All rows
        must be of the same database. Makes one query for all of them. Raises BadInput if a row is not saved, or if it
        is of another model.
        """
        given = [self._checked(row) for row in rows]
        return statuses_of(self.declaration, given)[0] if given else {}

    def remaining(self, row: Instance) -> timedelta | None:
        """Return the working time until the breach, negative after it; None as for status()."""
        status = self.status(row)
        return None if status is None else status.remaining

    def history(self, row: Instance) -> "list[SlaSegment]":
        """Return the past states of a row's clock, without the current one, oldest first. Raises as status() does."""
        pk = subject_pk(self.declaration, self._checked(row))
        using = _alias(row, self.declaration)
        return store.segments(self.declaration, pk, using) if using in databases.aliases() else []

    astatus = asynchronous_method(status)
    astatuses = asynchronous_method(statuses)
    aremaining = asynchronous_method(remaining)
    ahistory = asynchronous_method(history)

    def _checked(self, row: Instance) -> Instance:
        """Return the row if it is of the model, a proxy, or a model that inherits from it. Otherwise raise BadInput."""
        label = to_subject(row).label
        if not isinstance(row, self.declaration.concrete):
            raise BadInput(f"{self.topic}: the row is a {label}, but the service level is of {self.declaration.label}.")
        return row


def declared_on(model: type[Model]) -> list[SlaDeclaration]:
    """Return the valid service levels of a model, by topic."""
    return [each for each in declarations.declarations_of(model) if isinstance(each, SlaDeclaration)]


def statuses_of(declaration: SlaDeclaration, rows: Sequence[Instance]) -> tuple[dict[str, SlaStatus], int]:
    """Return {str of the primary key: SlaStatus} of these rows, and the time of these statuses in ms since 1970."""
    using = _alias(rows[0], declaration)
    if using not in databases.aliases():
        return {}, 0
    found = store.stored_clocks(declaration, [subject_pk(declaration, row) for row in rows], using)
    now_ms = databases.now_ms(using)
    return {each.subject_pk: to_status(declaration, store.to_clock(each), now_ms) for each in found}, now_ms


def subject_pk(declaration: SlaDeclaration, row: Any) -> str:
    """Return the primary key, as text, that identifies the row's clock: for a child model, that of its parent row."""
    return pk_text(declaration.pk, declaration.label, getattr(row, declaration.pk.attname))


def _alias(row: Any, declaration: SlaDeclaration) -> str:
    """Return the alias of the database that has the row's clock: for a row read from a replica, its primary."""
    found = str(row._state.db or declaration.using or databases.alias())
    return found if found in databases.aliases() else str(router.db_for_write(type(row), instance=row))


def to_status(declaration: SlaDeclaration, clock: Clock, now_ms: int) -> SlaStatus:
    consumed = clocks.consumed_ms(declaration, clock, now_ms) * MS
    return SlaStatus(clock.state, consumed, declaration.target - consumed, _breaches_at(declaration, clock))


def _breaches_at(declaration: SlaDeclaration, clock: Clock) -> datetime | None:
    if clock.state != clocks.RUNNING:
        return None
    try:
        return from_ms(clocks.reached_ms(declaration, clock, declaration.thresholds_ms[-1]))
    except NoOpenHours:
        return None


def to_event(declaration: SlaDeclaration, row: Any, job: "RunningJob") -> SlaEvent | Skip:
    """Return the event for a row whose job is running; Skip if the row is gone, or if its clock does not run.

    Fire has tested both, but only an atomic handler has kept the row locked since. Also limits the delay of a retry or
    a snooze, so that a warning does not hold up the next level.
    """
    found = store.read(declaration, [row.pk], job.using, applied_declarations.find(declaration.topic, job.using))
    clock = found[0].now if found else None
    if clock is None or clock.state != clocks.RUNNING:
        job.may_fire_later = True
        return Skip(UNMET if found else GONE)
    now_ms = databases.now_ms(job.using)
    job.until_ms = clocks.following_due_ms(declaration, clock)
    index = clocks.next_level(declaration, clock)
    part = declaration.levels[-1 if index is None else index]
    return SlaEvent(part, to_status(declaration, clock, now_ms), job)
