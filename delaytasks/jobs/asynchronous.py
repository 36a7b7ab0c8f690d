"""Coroutine versions of the public functions and of Handle's methods, for async views and `async def` handlers.

aschedule() has the arguments, the result and the exceptions of schedule(), and so on. Django's database drivers are
synchronous, so each call runs in the thread in which Django runs synchronous code (asgiref's sync_to_async). Inside an
atomic handler that is the thread of its transaction.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async

from .cancellation import cancel_many
from .control import cancel, reschedule, retry_dead, run_now
from .schedule import schedule, schedule_many

if TYPE_CHECKING:
    from ..models import Job

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")


def _asynchronous(verb: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    @functools.wraps(verb)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(verb)(*args, **kwargs)

    _name(call, verb)
    call.__module__ = __name__
    call.__doc__ = f"""{call.__doc__}

    Outside a handler the call is a transaction of its own. Inside an `async def` handler with atomic=True it
    takes effect with the handler's transaction. Django has no transaction for async code: to schedule a job
    with other changes in one transaction, put both into a function and call that with sync_to_async().
    """
    return call


def asynchronous_method(
    verb: Callable[Concatenate[Self, P], R],
) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, R]]:
    """Return a coroutine method that calls the method `verb` of its object, which a subclass may override."""
    verb_name = verb.__name__

    @functools.wraps(verb)
    async def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await sync_to_async(getattr(self, verb_name))(*args, **kwargs)
        return result

    _name(call, verb)
    return call


def _name(call: Any, verb: Callable[..., Any]) -> None:
    name = verb.__name__
    call.__name__ = f"a{name}"
    call.__qualname__ = f"{verb.__qualname__.removesuffix(name)}a{name}"
    call.__doc__ = f"Await {name}(): the same arguments, result and exceptions, without blocking the event loop."


aschedule = _asynchronous(schedule)
aschedule_many = _asynchronous(schedule_many)
acancel = _asynchronous(cancel)
acancel_many = _asynchronous(cancel_many)
areschedule = _asynchronous(reschedule)
arun_now = _asynchronous(run_now)

if TYPE_CHECKING:  # a ParamSpec keeps one signature only

    @overload
    async def aretry_dead(
        topic: str, key: str, *, using: str | None = None, by: str = "", reason: str = ""
    ) -> "Job": ...
    @overload
    async def aretry_dead(*, job_id: int, using: str | None = None, by: str = "", reason: str = "") -> "Job": ...
    async def aretry_dead(*args: Any, **kwargs: Any) -> "Job": ...
else:
    aretry_dead = _asynchronous(retry_dead)
