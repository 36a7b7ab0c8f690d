"""sla(): declare a service level on a model, with a function for its warnings and its breach."""

import functools
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from django.db.models import Model, Q

from .. import handlers
from ..calendars.calendar import Calendar
from ..exceptions import BadInput, short_repr
from ..handlers import RowHandlerOptions, SingleResult
from ..timeouts.timeout import register_declaration
from . import validation
from .declaration import SlaDeclaration
from .service_level import ServiceLevel, SlaEvent, to_event

if TYPE_CHECKING:
    from ..worker.attempt import RunningJob

Row = TypeVar("Row")
Function = Callable[[Row, "SlaEvent"], SingleResult | Coroutine[Any, Any, SingleResult]]


def sla(
    model: type[Row],
    *,
    target: timedelta,
    stop: Q,
    start: Q | None = None,
    pause: Q | None = None,
    calendar: Calendar | None = None,
    warn: Iterable[float] = (),
    topic: str | None = None,
    using: str | None = None,
    **options: Unpack[RowHandlerOptions],
) -> "Callable[[Function[Row]], ServiceLevel[Function[Row]]]":
    """Declare the working time that a row of a model may take, and register the function for warnings and breach.

        @sla(Ticket, calendar=OFFICE, target=hours(8), start=Q(state="new"), pause=Q(state="waiting"),
             stop=Q(state="answered"), warn=[0.5, 0.9])
        def first_answer(ticket: Ticket, event: SlaEvent) -> None:
            ticket.escalate() if event.is_breach else ticket.remind()

    model      the model. Saving a row starts or changes its clock; deleting the row deletes its clock
    target     timedelta above 0: the working time until the breach
    stop       Q: the clock is stopped while the row matches
    start      Q: the clock starts when the row matches for the first time; later, `start` has no effect. None: at once
    pause      Q: the clock is paused while the row matches and does not match `stop`. None: never
    calendar   Calendar in whose open time the target counts; None: elapsed time
    warn       parts of the target between 0 and 1, for example [0.5, 0.9]
    topic      str; None: "<app_label>.<model>.<function>"
    using      alias of the only database whose rows have clocks; None: all that have jobs and the model's table

    The other options are those of handler(), without batch, one_commit, subject, on_subject_delete and expires. The
    function is called once for each warning and once for the breach, with the row, locked until the end of an atomic
    handler, and an SlaEvent. The conditions are tested again just before: the function is not called for a paused or
    stopped clock. It is called early only if a person runs the job of the next level at once or moves it to an earlier
    time.

    A service level is a declared timeout: `manage.py delaytasks timeouts apply` puts it into force, and reconciliation
    finds changes that send no signal, such as those by update(). A condition may contain what timeout(while_=...)
    accepts.

    Returns a decorator; the result is the ServiceLevel, which is called like the function.

    Raises BadInput, and the exceptions of handler().
    """
    if not (isinstance(model, type) and issubclass(model, Model)):
        raise BadInput(f"sla(): model is {short_repr(model)}; give a model class.")
    model_class: type[Model] = model
    who = f"sla({model._meta.label})"
    handlers.check_options("sla()", options, RowHandlerOptions)
    validation.check_target(who, target, calendar)
    validation.check_conditions(who, start, pause, stop)
    warnings = validation.check_warn(who, warn)

    def register(function: Function[Row]) -> "ServiceLevel[Function[Row]]":
        name = topic or f"{model_class._meta.app_label}.{model_class._meta.model_name}.{function.__name__}"
        declaration = SlaDeclaration(
            name, model_class, on="", while_=(start or Q()) | (pause or Q()) | stop, calendar=calendar, using=using,
            target=target, warn=warnings, start=start, pause=pause, stop=stop,
        )  # fmt: skip

        handlers.check_parameters(name, function, "row", "event")

        @functools.wraps(function)
        def call(row: Any, job: "RunningJob") -> Any:
            event = to_event(declaration, row, job)
            return event if isinstance(event, handlers.Skip) else function(row, event)

        register_declaration(declaration, call, **options)
        return ServiceLevel(declaration, function)

    return register
