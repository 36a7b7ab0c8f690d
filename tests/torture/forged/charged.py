"""Failures that are counted for nothing, and starts that are recorded at the wrong time."""

from delaytasks.states import Outcome, State

from ..checker import ENOUGH
from . import breach, sound
from .forge import Forge


def _claimed_only(forge: Forge, job: int, *, worker: str = "w1") -> None:
    """Charged at the first attempt, whose handler was never called, and finished by the second."""
    forge.promised(job)
    forge.event(job, Outcome.EXPIRED, attempt=1, reserved=1_000, done=2_100 - job, next_due=2_500, worker=worker)
    forge.finished(job, attempt=2, ms=3_000)


@breach("charged", "attempt 1 was charged a failure of w1, but never started")
def two_jobs_of_one_process(forge: Forge) -> None:
    _claimed_only(forge, 1)
    _claimed_only(forge, 2)


@sound
def one_job_of_each_process_that_died(forge: Forge) -> None:
    _claimed_only(forge, 1, worker="w1")
    _claimed_only(forge, 2, worker="w2")


def _begun_late(forge: Forge, late_ms: int) -> None:
    for job in range(100, 100 + ENOUGH):
        forge.promised(job)
        forge.begins(job, 1_000 + late_ms)
        forge.event(job, Outcome.FINISHED, attempt=1, reserved=1_000)
        forge.effect(job)
        forge.row(job, State.FINISHED, attempt=1)


@breach("lateness", "half of the attempts began 6000 ms or more from the recorded start", job=None)
def the_claim_is_recorded_and_not_the_start(forge: Forge) -> None:
    _begun_late(forge, 6_000)


@sound
def the_handlers_start_as_late_as_on_a_busy_machine(forge: Forge) -> None:
    _begun_late(forge, 20)
