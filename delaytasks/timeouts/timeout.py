"""timeout(): declare a timeout on a model, together with its handler."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from django.db.models import Model, Q

from .. import handlers
from ..calendars import WorkingDays
from ..calendars.calendar import Calendar
from ..exceptions import BadInput, short_repr
from ..handlers import RowHandlerOptions, SingleResult
from ..jobs.handles import Handle
from ..worker import completion
from . import declarations, fire, receivers
from .declarations import Declaration, IfPast, Span

if TYPE_CHECKING:
    from ..worker.attempt import RunningJob

Row = TypeVar("Row")
Function = Callable[[Row, "RunningJob"], SingleResult | Coroutine[Any, Any, SingleResult]]


def timeout(
    model: type[Row],
    *,
    on: str,
    after: Span | None = None,
    before: Span | None = None,
    while_: Q | None = None,
    if_past: IfPast = "run",
    calendar: Calendar | None = None,
    topic: str | None = None,
    using: str | None = None,
    expires: timedelta | float | int | None = None,
    **options: Unpack[RowHandlerOptions],
) -> "Callable[[Function[Row]], Handle[Function[Row]]]":
    """Declare that each row of a model that matches a condition has a job, and register the job's handler.

        @timeout(Order, on="created_at", after=timedelta(minutes=30), while_=Q(state="open"))
        def close_unpaid(order: Order, job: RunningJob) -> None:
            order.close()

    model      the model. Saving, changing and deleting its rows makes, moves and cancels their jobs
    on         name of the DateTimeField from which the due time is counted. A row where it is null has no job
    after      how long after that time the job is due: a timedelta, 0 or more, or the name of a DurationField; with
               calendar= also days(n), working days
    before     how long before that time, in the same forms. Without after and before, the job is due at that time
    while_     Q: only rows that match it have a job. It may use the model's fields and follow foreign keys, but
               nothing that depends on the time or the session. None: all rows
    if_past    for a due time that has passed already when it is noticed: "run" the job now, "skip" it, or a
               timedelta: run it unless the due time passed longer ago
    calendar   Calendar in whose open time after and before count; None: elapsed time
    topic      str; None: "<app_label>.<model>.<function>"
    using      alias of the only database whose rows have jobs; None: all that have jobs and the model's table

    The other options are those of handler(), without batch, one_commit, subject and on_subject_delete. The function
    receives the row, locked until the end of an atomic handler, and the RunningJob. The condition and the due time are
    tested again just before: if the condition is false or the row is gone, the job ends as skipped; if the due time has
    changed, the job is moved.

    A declaration fires once for each row and due time. `manage.py delaytasks timeouts apply` puts a new or changed
    declaration into force; under DEBUG and in the test kit it is in force at once.

    Returns a decorator; the result is the Handle of the topic, which is called like the function.

    Raises BadInput, and the exceptions of handler(). The system checks delaytasks.E040 to E045 report fields and
    conditions that cannot be used; such a declaration does nothing.
    """
    if not (isinstance(model, type) and issubclass(model, Model)):
        raise BadInput(f"timeout(): model is {short_repr(model)}; give a model class.")
    model_class: type[Model] = model
    given = {"on": on, "after": after, "before": before, "while_": while_, "if_past": if_past, "calendar": calendar}
    check_options(f"timeout({model._meta.label})", **given)
    handlers.check_options("timeout()", options, RowHandlerOptions)

    def register(function: Function[Row]) -> "Handle[Function[Row]]":
        name = topic or f"{model_class._meta.app_label}.{model_class._meta.model_name}.{function.__name__}"
        declaration = Declaration(
            name, model_class, on, after, before, Q() if while_ is None else while_, if_past, calendar, using
        )
        handlers.check_parameters(name, function, "row", "job")
        register_declaration(declaration, function, expires=expires, **options)
        return Handle(name, function)

    return register


def register_declaration(declaration: Declaration, function: Callable[..., Any], **options: Any) -> None:
    """Register a declaration and the handler of its topic; the options are those of handler()."""
    called = fire.Fire(declaration, function)
    handlers.handler(declaration.topic, subject=declaration.model, **options)(called)
    registered = handlers.find(declaration.topic)
    if registered is not None and registered.function is called:  # otherwise E002 reports two handlers
        declarations.add(declaration)
        completion.after_end[declaration.topic] = fire.sync_row
        receivers.connect(declaration)


def check_options(
    who: str, *, on: Any, after: Any, before: Any, while_: Any, if_past: Any, calendar: Any
) -> None:  # fmt: skip
    """Raise BadInput if an argument of timeout() is wrong. Never accesses a model."""
    if not isinstance(on, str):
        raise BadInput(f"{who}: on is {short_repr(on)}; give the name of a DateTimeField.")
    if after is not None and before is not None:
        raise BadInput(f"{who}: after and before were both given; give one of them, or neither.")
    for name, span in (("after", after), ("before", before)):
        _check_span(f"{who}: {name}", span, calendar)
    if not (while_ is None or isinstance(while_, Q)):
        raise BadInput(f"{who}: while_ is {short_repr(while_)}; give a Q, such as Q(state='open').")
    if if_past not in ("run", "skip") and not (isinstance(if_past, timedelta) and if_past >= timedelta(0)):
        raise BadInput(f"{who}: if_past is {short_repr(if_past)}; use 'run', 'skip' or a timedelta from 0 on.")
    if not (calendar is None or isinstance(calendar, Calendar)):
        raise BadInput(f"{who}: calendar is {short_repr(calendar)}; give a Calendar.")
    if calendar is not None and after is None and before is None:
        raise BadInput(f"{who}: calendar was given without after or before: there is no time to count.")


def _check_span(what: str, span: Any, calendar: Any) -> None:
    if isinstance(span, WorkingDays) and calendar is None:
        raise BadInput(f"{what} is a number of working days: give the calendar= that counts them, or a timedelta.")
    if isinstance(span, timedelta) and span < timedelta(0):
        raise BadInput(f"{what} is negative: {span}. To be due earlier than the field says, use before=.")
    if isinstance(span, WorkingDays) and span.count < 0:
        raise BadInput(f"{what} is negative: {span.count} days. To be due earlier than the field says, use before=.")
    if not (span is None or isinstance(span, timedelta | WorkingDays | str)):
        raise BadInput(f"{what} is {short_repr(span)}; give a timedelta, or the name of a DurationField.")
