"""What becomes of the jobs of a bulk change: each is changed or left as it is, and one word says which.

The words are the same for one job and for ten thousand. They are stored in English, and shown in the reader's
language by the admin.
"""

import logging
import traceback
from collections.abc import Callable, Collection, Sequence

from django.db import InterfaceError, OperationalError, transaction

from . import changing, engine, manymoves, stafflog
from .changing import CalledOff, CancelResult, Who
from .conflicts import waited_too_long
from .exceptions import BadInput, DelaytasksError, KeyIsLive, MovedMeanwhile, NotDead, NotLive, Reserved
from .models import BulkChange, Job
from .states import State

logger = logging.getLogger("delaytasks")
SAMPLES = 20  # jobs that are named for each outcome
IN_A_ROW = 20  # errors after which it is not the jobs

Operation, Standing = BulkChange.Operation, BulkChange.State
DONE_WORDS = {
    Operation.CANCEL: "cancelled",
    Operation.POSTPONE: "postponed",
    Operation.RUN_NOW: "made ready",
    Operation.RETRY: "retried",
}
_REFUSALS: dict[type[DelaytasksError], str] = {
    Reserved: "already running",
    MovedMeanwhile: "moved meanwhile",
    NotDead: "not dead",
    KeyIsLive: "its key is live again",
}
_ENDED = {State.FINISHED: "already finished", State.CANCELLED: "already cancelled", State.DEAD: "dead"}
UNKNOWN = "no longer there"
ERROR = "error: "  # and its type


def visit(change: BulkChange, ids: list[int], only: Collection[str] | None, using: str) -> list[int]:
    """Change each of these jobs that is free, and count it by what became of it; those that are left for later.

    only   the topics of which jobs are changed; None: of all

    In the caller's transaction. A job's error is of that job alone, which stays as it was; one that each of many
    has is not counted: the change has failed.
    """
    needed = State.DEAD if change.operation == Operation.RETRY else State.DELAYED
    free = manymoves.free(using, ids, needed)
    found = Job.objects.using(using).defer("body", "error").in_bulk(ids)
    held = {job_id for job_id, job in found.items() if job.state == needed and job_id not in free}
    jobs = {pk: job for pk, job in found.items() if only is None or job.topic in only}
    among = [job_id for job_id in ids if job_id not in held]
    words, blocked = _words(change, among, jobs, using)
    visited = [job_id for job_id in ids if job_id in words]
    for job_id in visited:
        _count(change, words[job_id], jobs.get(job_id), job_id)
    done_word = DONE_WORDS[Operation(change.operation)]
    done = [jobs[job_id] for job_id in visited if words[job_id] == done_word]
    stafflog.write(change.user_id, done, done_word.capitalize(), change.reason)
    return [job_id for job_id in ids if job_id not in words and job_id not in blocked] + blocked


def _words(change: BulkChange, ids: list[int], jobs: dict[int, Job], using: str) -> tuple[dict[int, str], list[int]]:
    """What became of each, as far as it comes; and the job that it would have had to wait for.

    Those that can be changed are locked already, so their order here does not matter.
    """
    words = dict.fromkeys(
        _change_together(change, [job_id for job_id in ids if job_id in jobs], using),
        DONE_WORDS[Operation(change.operation)],
    )
    in_a_row: list[int] = []
    for job_id in ids:
        if job_id in words:
            in_a_row = []
            continue
        try:
            with transaction.atomic(using):
                words[job_id] = change_one(change, jobs.get(job_id), using)
            in_a_row = []
        except (OperationalError, InterfaceError) as error:
            if not waited_too_long(error):
                raise
            return words, [job_id]
        except Exception as error:
            logger.warning("bulk change %s could not change job %s", change.pk, job_id, exc_info=True)
            words[job_id] = f"{ERROR}{type(error).__name__}"
            in_a_row.append(job_id)
            if len(in_a_row) == IN_A_ROW:
                change.state, change.error = Standing.FAILED, traceback.format_exc()[-10_000:]
                return {each: word for each, word in words.items() if each not in in_a_row}, []
    return words, []


def _change_together(change: BulkChange, ids: Sequence[int], using: str) -> set[int]:
    """Do it to those that are as the change needs them; which were. What cannot be done to any is said of each."""
    if not ids:
        return set()
    who = Who(change.by, change.reason)
    try:
        with transaction.atomic(using):
            match change.operation:
                case Operation.CANCEL:
                    return manymoves.cancel(using, ids, who)
                case Operation.POSTPONE:
                    return manymoves.postpone(using, ids, change.delay_ms or 0, who)
                case Operation.RUN_NOW:
                    return manymoves.run_now(using, ids, who)
                case _:
                    return manymoves.retry(using, ids, who)
    except (OperationalError, InterfaceError) as error:
        if not waited_too_long(error):
            raise
        return set()
    except Exception as error:
        if not isinstance(error, BadInput):
            logger.warning("bulk change %s goes on job by job", change.pk, exc_info=True)
        return set()


def change_one(change: BulkChange, job: Job | None, using: str, seen_due_ms: int | None = None) -> str:
    """Do to one job what the change asks for; what became of it, in a word.

    seen_due_ms   when it was due as the person saw it: who presses a button twice postpones once
    """
    if job is None:
        return UNKNOWN
    if change.operation == Operation.RUN_NOW and job.state == State.DELAYED and job.due_ms <= engine.now_ms(using):
        return "already ready"
    try:
        answer = _ACTS[Operation(change.operation)](change, job.pk, using, seen_due_ms)
    except NotLive:
        return _standing(job.pk, using)
    except DelaytasksError as error:
        return _REFUSALS.get(type(error)) or str(error)
    if isinstance(answer, CalledOff) and not answer.mine:
        return "already running" if answer.answer is CancelResult.RUNNING else _standing(job.pk, using)
    return DONE_WORDS[Operation(change.operation)]


def _standing(job_id: int, using: str) -> str:
    state = Job.objects.using(using).filter(pk=job_id).values_list("state", flat=True).first()
    return UNKNOWN if state is None else _ENDED.get(State(state), "already running")


_ACTS: dict[str, Callable[[BulkChange, int, str, int | None], object]] = {
    Operation.CANCEL: lambda c, i, using, _: changing.call_off(i, using=using, by=c.by, reason=c.reason),
    Operation.POSTPONE: lambda c, i, using, seen: changing.postpone_job(
        i, (c.delay_ms or 0) / 1000, seen_due_ms=seen, using=using, by=c.by, reason=c.reason
    ),
    Operation.RUN_NOW: lambda c, i, using, _: changing.run_job_now(i, using=using, by=c.by, reason=c.reason),
    Operation.RETRY: lambda c, i, using, _: changing.retry_dead(job_id=i, using=using, by=c.by, reason=c.reason),
}


def _count(change: BulkChange, word: str, job: Job | None, job_id: int) -> None:
    change.outcomes[word] = change.outcomes.get(word, 0) + 1
    named = change.samples.setdefault(word, [])
    if len(named) < SAMPLES:
        named.append([job_id, job.topic if job else "", job.key if job else ""])
