"""Changes to a job by a caller of the API. They require a reason where the topic does, and are logged."""

from collections.abc import Callable
from typing import TypeVar

from ..admin_log import Action
from ..jobs import control
from ..models import Job
from ..outcomes import CANCEL_RESULTS, CancelResult, Result
from .access.permissions import Caller

Returned = TypeVar("Returned")


def change(job: Job, caller: Caller, using: str, action: Action, reason: str, do: Callable[..., Returned]) -> Returned:
    """Call do(using=..., by=..., reason=...), log the change as `action` and return the result of do().

    do() must raise if it changes nothing. Raises ValidationError if the topic requires a reason and there is none.
    """
    caller.require_reason(job.topic, reason)

    def do_and_log() -> Returned:
        result = do(using=using, by=caller.signature, reason=reason)
        caller.log([job], action, reason)
        return result

    return caller.run_audited(do_and_log, using)


def cancel(job: Job, caller: Caller, using: str, reason: str) -> CancelResult:
    """Cancel a job and return the result. Logs only a change made by this call. Raises ValidationError as change()."""
    caller.require_reason(job.topic, reason)

    def do_and_log() -> CancelResult:
        result = control.cancel_by_id(job.pk, using=using, by=caller.signature, reason=reason)
        if result is Result.CANCELLED:
            caller.log([job], Action.CANCELLED, reason)
        return CANCEL_RESULTS[result]

    return caller.run_audited(do_and_log, using)
