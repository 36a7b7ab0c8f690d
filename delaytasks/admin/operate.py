"""Cancel, run now, retry: one job at a time, each in a transaction of its own, each with its truthful answer."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import router, transaction
from django.http import HttpRequest
from django.utils.translation import gettext_lazy, ngettext

from .. import changing
from ..changing import CancelResult
from ..exceptions import DelaytasksError, KeyIsLive, NotDead, NotLive, Reserved
from ..models import Job
from ..states import State

NAMED = 10  # refused jobs that a message names; the others are counted

RUNNING = gettext_lazy("already running")
FINISHED = gettext_lazy("already finished")
UNKNOWN = gettext_lazy("no longer there")
ENDED = {
    State.FINISHED: FINISHED,
    State.CANCELLED: gettext_lazy("already cancelled"),
    State.DEAD: gettext_lazy("dead"),
}

REFUSED_CANCEL = {
    CancelResult.RUNNING: RUNNING,
    CancelResult.ALREADY_FINISHED: FINISHED,
    CancelResult.UNKNOWN: UNKNOWN,
}
REFUSALS: dict[type[DelaytasksError], Any] = {
    Reserved: RUNNING,
    NotDead: gettext_lazy("not dead"),
    KeyIsLive: gettext_lazy("its key is live again"),
}


class Operation(NamedTuple):
    act: Callable[[int, str], object]  # (job id, who); raises DelaytasksError or answers with a CancelResult
    done: Any
    refused: Any
    log: str


CANCEL = Operation(
    lambda job_id, by: changing.cancel_job(job_id, by=by),
    gettext_lazy("cancelled"),
    gettext_lazy("not cancelled"),
    "Cancelled.",
)
RUN_NOW = Operation(
    lambda job_id, by: changing.run_job_now(job_id, by=by),
    gettext_lazy("made ready"),
    gettext_lazy("not made ready"),
    "Made ready at once.",
)
RETRY = Operation(
    lambda job_id, by: changing.retry_dead(job_id=job_id, by=by),
    gettext_lazy("retried"),
    gettext_lazy("not retried"),
    "Retried.",
)


def operate(request: HttpRequest, operation: Operation, ids: Iterable[int]) -> None:
    """Do `operation` to every job of `ids`, log what changed and tell the person what happened to each."""
    wanted = list(ids)
    jobs = Job.objects.using(router.db_for_write(Job)).defer("body", "error").in_bulk(wanted)
    done = 0
    refused: dict[str, list[str]] = {}
    for job_id in wanted:
        job = jobs.get(job_id)
        why = UNKNOWN if job is None else _one(request, operation, job)
        if why is None:
            done += 1
        else:
            refused.setdefault(str(why), []).append(job.key if job else str(job_id))
    _tell(request, operation, done, refused)


def _one(request: HttpRequest, operation: Operation, job: Job) -> Any:
    """None if it was done, else the words for why not. A refusal undoes nothing but itself."""
    user: Any = request.user
    if job.state == State.CANCELLED and operation is CANCEL:
        return ENDED[State.CANCELLED]  # cancel() would say so, too, and the log would name somebody who did nothing
    try:
        with transaction.atomic(using=router.db_for_write(Job)):
            answer = operation.act(job.pk, user.get_username())
            if isinstance(answer, CancelResult) and answer is not CancelResult.CANCELLED:
                return REFUSED_CANCEL[answer]
            LogEntry.objects.log_actions(user.pk, [job], CHANGE, operation.log, single_object=True)
    except NotLive as error:
        state = Job.objects.using(router.db_for_write(Job)).filter(pk=job.pk).values_list("state", flat=True).first()
        return UNKNOWN if state is None else ENDED.get(State(state), str(error))
    except DelaytasksError as error:
        return REFUSALS.get(type(error), str(error))
    return None


def _tell(request: HttpRequest, operation: Operation, done: int, refused: dict[str, list[str]]) -> None:
    if done:
        messages.success(request, f"{operation.done} {done}")
    if refused:
        parts = "; ".join(f"{why} {len(keys)} ({_names(keys)})" for why, keys in refused.items())
        messages.warning(request, f"{operation.refused}: {parts}")


def _names(keys: list[str]) -> str:
    named = ", ".join(keys[:NAMED])
    rest = len(keys) - NAMED
    return named if rest <= 0 else named + ngettext(" and %(n)d more", " and %(n)d more", rest) % {"n": rest}
