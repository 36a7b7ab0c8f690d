"""Changes to a job by a caller: with a reason where one is asked for, and for staff with an entry in Django's log."""

from collections.abc import Callable
from typing import TypeVar

from .. import changing
from ..changing import CancelResult
from ..models import Job
from .access import Caller

Answered = TypeVar("Answered")


def change(job: Job, caller: Caller, using: str, what: str, reason: str, do: Callable[..., Answered]) -> Answered:
    """What do(using=, by=, reason=) answers, once it is logged as `what`. It raises if it does nothing.

    Raises ValidationError without a reason that is asked for.
    """
    caller.require_reason(job.topic, reason)

    def whole() -> Answered:
        done = do(using=using, by=caller.signature, reason=reason)
        caller.log([job], what, reason)
        return done

    return caller.logged(whole, using)


def cancel(job: Job, caller: Caller, using: str, reason: str) -> CancelResult:
    """What became of a cancel. Logged if this one did it. Raises ValidationError as change() does."""
    caller.require_reason(job.topic, reason)

    def whole() -> CancelResult:
        done = changing.call_off(job.pk, using=using, by=caller.signature, reason=reason)
        if done.mine:
            caller.log([job], "Cancelled", reason)
        return done.answer

    return caller.logged(whole, using)
