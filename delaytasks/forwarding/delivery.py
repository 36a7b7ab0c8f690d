"""Deliver a job to its target, and hold its topic while the target is away."""

from .. import databases
from ..handlers import Snooze
from ..states import Outcome
from ..worker.attempt import RunningJob
from ..worker.completion import Completion, complete
from . import holds
from .targets import Format, Message, Rejected, Target, TargetDown

MARGIN_SECONDS = 1.0  # of the TTR, left to store the result of a call


def deliver(job: RunningJob, *, target: Target, format: Format, source: str) -> Snooze | None:
    """Send a job to its target and wait for the confirmation. This is the handler of a topic that is forwarded."""
    wait = holds.wait_seconds(job.using, job.topic, job.ttr_ms)
    if wait is not None:
        return _hand_back(wait)
    message = Message(str(job.id), job.topic, job.key, job.body, job.due_at, source, format, job.trace_context or "")
    seconds = (job.lease_ms - databases.now_ms(job.using)) / 1000
    if seconds <= 0:
        raise TimeoutError(f"The TTR of {job!r} was over before it was sent.")
    try:
        target.deliver(message, max(seconds - MARGIN_SECONDS, seconds / 2))
    except TargetDown as error:
        return _hand_back(holds.hold(job.using, job.topic, error.reason, error.retry_seconds))
    except Rejected as error:
        _bury(job, error)
    holds.release(job.using, job.topic)
    return None


# How the engine takes a job back without a failure, and how it makes a job dead at once: these two functions only.


def _hand_back(seconds: float) -> Snooze:
    return Snooze(seconds)


def _bury(job: RunningJob, error: Rejected) -> None:
    complete(job.using, [Completion(job, Outcome.DEAD, None, f"{type(error).__name__}: {error}")])
    job.ended = True
