"""Handle: the object that @handler returns. It is called like the function, and has methods for its topic's jobs."""

import functools
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from django.apps import apps

from .. import handlers
from ..exceptions import BadInput
from ..outcomes import CancelResult
from . import control
from .asynchronous import asynchronous_method
from .cancellation import connect_delete
from .inputs import Delay
from .schedule import ScheduleOptions, schedule
from .subjects import Instance, to_subject

if TYPE_CHECKING:
    from ..models import Job

Function = TypeVar("Function", bound=Callable[..., Any])


class Handle(Generic[Function]):
    """A decorated handler: it can be called like the function, and has methods for the jobs of its topic.

        close_unpaid_order.schedule(order, delay=timedelta(minutes=30))   # subject: key "order:1042"
        close_unpaid_order.cancel(order)
        close_unpaid_order.cancel("order:1042")                           # the same job

    topic      str
    function   the function as it was defined

    Each method takes a model instance, whose jobs have the key "<model>:<primary key>", or a key. The other
    arguments, results and exceptions are those of the function of the same name. An instance that is not
    saved, that was deleted, or whose primary key is composite raises BadInput, as does an instance of
    another model than the `subject` of @handler.

    In async code: aschedule(), acancel(), areschedule() and arun_now().
    """

    topic: str
    function: Function

    if TYPE_CHECKING:
        __call__: Function
    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.function(*args, **kwargs)

    def __init__(self, topic: str, function: Function) -> None:
        functools.update_wrapper(self, function)
        self.topic, self.function = topic, function
        if apps.models_ready:  # otherwise AppConfig.ready() does it
            connect_delete(topic)

    def __repr__(self) -> str:
        return f"<handler of {self.topic}: {handlers.name_of(self.function)}>"

    def __reduce__(self) -> str:
        return self.function.__qualname__  # pickled by name, like a function

    def schedule(self, subject: Instance | str, *, key: str | None = None, **options: Unpack[ScheduleOptions]) -> "Job":
        """Schedule a job about `subject`, a model instance or a key.

        key   str: the key of the instance's job, instead of the default "<model>:<primary key>"

        Otherwise as delaytasks.schedule().
        """
        if isinstance(subject, str):
            return schedule(self.topic, self._key(subject, key), **options)
        return schedule(self.topic, key, subject=subject, **options)

    def cancel(
        self, subject: Instance | str, *, key: str | None = None, running: control.WhenRunning = "leave",
        using: str | None = None, by: str = "", reason: str = "",
    ) -> CancelResult:  # fmt: skip
        """Cancel the job about `subject`, a model instance or a key; as delaytasks.cancel()."""
        return control.cancel(self.topic, self._key(subject, key), running=running, using=using, by=by, reason=reason)

    def reschedule(
        self, subject: Instance | str, *, key: str | None = None, delay: Delay | None = None,
        due_at: datetime | None = None, using: str | None = None, by: str = "", reason: str = "",
    ) -> "Job":  # fmt: skip
        """Move the job about `subject`, a model instance or a key; as delaytasks.reschedule()."""
        return control.reschedule(
            self.topic, self._key(subject, key), delay=delay, due_at=due_at, using=using, by=by, reason=reason
        )

    def run_now(
        self, subject: Instance | str, *, key: str | None = None, using: str | None = None, by: str = "",
        reason: str = "",
    ) -> "Job":  # fmt: skip
        """Make the job about `subject`, a model instance or a key, due now; as delaytasks.run_now()."""
        return control.run_now(self.topic, self._key(subject, key), using=using, by=by, reason=reason)

    aschedule = asynchronous_method(schedule)
    acancel = asynchronous_method(cancel)
    areschedule = asynchronous_method(reschedule)
    arun_now = asynchronous_method(run_now)

    def _key(self, subject: Instance | str, key: str | None) -> str:
        if isinstance(subject, str):
            if key is not None:
                raise BadInput(f"{self.topic}: two keys were given, {subject!r} and key={key!r}.")
            return subject
        found = to_subject(subject)
        handlers.check_subject(self.topic, found.label)
        return found.key if key is None else key
