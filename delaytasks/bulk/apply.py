"""Change one batch of the jobs of a bulk change, and count the results.

A result is an outcomes.Result, as for a change to a single job, or "error:" and the type of an exception.
"""

import logging
import traceback
from collections.abc import Callable, Collection, Sequence

from django.db import InterfaceError, OperationalError, transaction

from .. import admin_log, databases
from ..admin_log import Action
from ..db.retries import waited_too_long
from ..exceptions import BadInput, DelaytasksError, NotLive
from ..jobs import control
from ..jobs.control import Origin
from ..models import BulkChange, Job
from ..outcomes import DONE, NOT_DELAYED, Result, error_result
from ..querysets import LARGE_COLUMNS
from ..states import State
from . import moves

logger = logging.getLogger("delaytasks")
SAMPLES = 20  # jobs that BulkChange.samples lists for each result
MAX_ERRORS_IN_A_ROW = 20  # after so many, the whole change fails

Operation = BulkChange.Operation
# The states of the jobs that an operation changes; other operations change delayed jobs.
_NEEDED = {Operation.CANCEL: (State.DELAYED, State.DEAD), Operation.RETRY: (State.DEAD,)}


def change_batch(change: BulkChange, ids: list[int], topics: Collection[str] | None, using: str) -> list[int]:
    """Change these jobs and count the results. Return the ids of jobs without a result, to be tried again later.

    topics   only jobs of these topics are changed; None: jobs of all topics

    Runs in the caller's transaction. Jobs without a result are locked by other transactions, or come after a job whose
    lock was not free in time. A job whose change raises an error stays unchanged, and the other jobs are changed
    nevertheless. But if MAX_ERRORS_IN_A_ROW jobs in a row raise, they get no result and the whole change has failed.
    """
    needed = _NEEDED.get(Operation(change.operation), (State.DELAYED,))
    free = {job_id for state in needed for job_id in moves.lock_free(using, ids, state)}
    rows = Job.objects.using(using).defer(*LARGE_COLUMNS).in_bulk(ids)
    locked = {job_id for job_id, job in rows.items() if job.state in needed and job_id not in free}
    jobs = {pk: job for pk, job in rows.items() if topics is None or job.topic in topics}
    candidates = [job_id for job_id in ids if job_id not in locked]
    results, blocked = _results(change, candidates, jobs, using)
    counted = [job_id for job_id in ids if job_id in results]
    for job_id in counted:
        _count(change, results[job_id], jobs.get(job_id), job_id)
    success = DONE[change.operation]
    done = [jobs[job_id] for job_id in counted if results[job_id] == success]
    admin_log.write(change.user_id, done, Action.of(success), change.reason, audit=False)
    return [job_id for job_id in ids if job_id not in results and job_id not in blocked] + blocked


def _results(change: BulkChange, ids: list[int], jobs: dict[int, Job], using: str) -> tuple[dict[int, str], list[int]]:
    """Change the jobs. Return ({id: result}, [id of the job whose lock was not free in time, if any]).

    Jobs after such a job have no result, except those that one statement changed together. The jobs that can be changed
    are locked already, so their order here does not matter.
    """
    together = _change_together(change, [job_id for job_id in ids if job_id in jobs], using)
    results: dict[int, str] = dict.fromkeys(together, DONE[change.operation])
    failed_in_a_row: list[int] = []
    for job_id in ids:
        if job_id in results:
            failed_in_a_row = []
            continue
        try:
            with transaction.atomic(using):
                results[job_id] = change_one(change, jobs.get(job_id), using)
            failed_in_a_row = []
        except (OperationalError, InterfaceError) as error:
            if not waited_too_long(error):
                raise
            return results, [job_id]
        except Exception as error:
            logger.warning("bulk change %s could not change job %s", change.pk, job_id, exc_info=True)
            results[job_id] = error_result(error)
            failed_in_a_row.append(job_id)
            if len(failed_in_a_row) == MAX_ERRORS_IN_A_ROW:
                change.state, change.error = BulkChange.State.FAILED, traceback.format_exc()[-10_000:]
                return {pk: result for pk, result in results.items() if pk not in failed_in_a_row}, []
    return results, []


def _change_together(change: BulkChange, ids: Sequence[int], using: str) -> set[int]:
    """Change the jobs that are in the required state, in one statement. Return the ids of those that were changed.

    After an error no job is changed and the result is empty. The caller then changes the jobs one by one, so that each
    has a result of its own.
    """
    if not ids:
        return set()
    origin = Origin(change.by, change.reason)
    try:
        with transaction.atomic(using):
            match change.operation:
                case Operation.CANCEL:
                    return moves.cancel(using, ids, origin)
                case Operation.POSTPONE:
                    return moves.postpone(using, ids, change.delay_ms or 0, origin)
                case Operation.RUN_NOW:
                    return moves.run_now(using, ids, origin)
                case _:
                    return moves.retry(using, ids, origin)
    except (OperationalError, InterfaceError) as error:
        if not waited_too_long(error):
            raise
        return set()
    except Exception as error:
        if not isinstance(error, BadInput):
            logger.warning("bulk change %s continues job by job", change.pk, exc_info=True)
        return set()


def change_one(change: BulkChange, job: Job | None, using: str, seen_due_ms: int | None = None) -> str:
    """Apply the change to one job. Return a Result, or error:<type>.

    seen_due_ms   the due time that the user saw, in ms since 1970: a job with another due time is not postponed, so
                  that pressing a button twice postpones once. None: do not check
    """
    if job is None:
        return Result.NOT_FOUND
    if change.operation == Operation.RUN_NOW and job.state == State.DELAYED and job.due_ms <= databases.now_ms(using):
        return Result.ALREADY_READY
    try:
        returned = _OPERATIONS[Operation(change.operation)](change, job.pk, using, seen_due_ms)
    except NotLive:
        return _current_result(job.pk, using)
    except DelaytasksError as error:
        logger.info("job %s was not changed: %s", job.pk, error)
        return error_result(error)
    return returned if isinstance(returned, Result) else DONE[change.operation]


def _current_result(job_id: int, using: str) -> Result:
    """Return the result for a job that cannot be changed, by its current state."""
    state = Job.objects.using(using).filter(pk=job_id).values_list("state", flat=True).first()
    return Result.NOT_FOUND if state is None else NOT_DELAYED.get(State(state), Result.RUNNING)


def _cancel(change: BulkChange, job_id: int, using: str, _: int | None) -> Result:
    """Cancel a job that waits or is dead. Unlike control.cancel_by_id(), leave the next run of a running one."""
    origin = Origin(change.by, change.reason)
    if moves.cancel(using, [job_id], origin):
        return Result.CANCELLED
    return _current_result(job_id, using)


_OPERATIONS: dict[str, Callable[[BulkChange, int, str, int | None], object]] = {
    Operation.CANCEL: _cancel,
    Operation.POSTPONE: lambda c, i, using, seen: control.postpone_job(
        i, (c.delay_ms or 0) / 1000, seen_due_ms=seen, using=using, by=c.by, reason=c.reason
    ),
    Operation.RUN_NOW: lambda c, i, using, _: control.run_job_now(i, using=using, by=c.by, reason=c.reason),
    Operation.RETRY: lambda c, i, using, _: control.retry_dead(job_id=i, using=using, by=c.by, reason=c.reason),
}


def _count(change: BulkChange, result: str, job: Job | None, job_id: int) -> None:
    change.outcomes[result] = change.outcomes.get(result, 0) + 1
    samples = change.samples.setdefault(result, [])
    if len(samples) < SAMPLES:
        samples.append([job_id, job.topic if job else "", job.key if job else ""])
