"""Change the jobs that a person selected, at once: each in its own transaction, each with its truthful answer.

The words of an answer are the engine's, the same for one job and for ten thousand. They are
stored in English and shown in the reader's language.
"""

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.db import router, transaction
from django.http import HttpRequest
from django.utils.translation import gettext_lazy, ngettext

from .. import bulk
from ..models import BulkChange, Job, Topic
from . import rights

NAMED = 10  # refused jobs that a message names; the others are counted

Operation = BulkChange.Operation
CANCEL, POSTPONE, RUN_NOW, RETRY = Operation.CANCEL, Operation.POSTPONE, Operation.RUN_NOW, Operation.RETRY
NO_REASON = "its topic asks for a reason"
WORDS = {
    "cancelled": gettext_lazy("cancelled"),
    "postponed": gettext_lazy("postponed"),
    "made ready": gettext_lazy("made ready"),
    "retried": gettext_lazy("retried"),
    "already running": gettext_lazy("already running"),
    "already finished": gettext_lazy("already finished"),
    "already cancelled": gettext_lazy("already cancelled"),
    "dead": gettext_lazy("dead"),
    "not dead": gettext_lazy("not dead"),
    "its key is live again": gettext_lazy("its key is live again"),
    "no longer there": gettext_lazy("no longer there"),
    NO_REASON: gettext_lazy("its topic asks for a reason"),
}
REFUSED = {
    CANCEL: gettext_lazy("not cancelled"),
    POSTPONE: gettext_lazy("not postponed"),
    RUN_NOW: gettext_lazy("not made ready"),
    RETRY: gettext_lazy("not retried"),
}


def word(outcome: str) -> str:
    """A stored outcome in the reader's language; as it stands if it is none of ours."""
    return str(WORDS.get(outcome, outcome))


def asking(using: str) -> set[str]:
    """The topics whose jobs nobody may change without saying why."""
    return set(Topic.objects.using(using).filter(ask_reason=True).values_list("name", flat=True))


def operate(
    request: HttpRequest, operation: Operation, ids: Iterable[int], reason: str = "", delay_ms: int | None = None
) -> None:
    """Do `operation` to every job of `ids`, log what changed and tell the person what happened to each.

    delay_ms   by how much to postpone; belongs to POSTPONE alone

    A job of a topic that they may not see is no longer there for them; one whose topic asks for a
    reason is left alone without one.
    """
    user: Any = request.user
    wanted, using = list(ids), router.db_for_write(Job)
    jobs = rights.visible(Job.objects.using(using), user).defer("body", "error").in_bulk(wanted)
    strict = set() if reason else asking(using)
    change = BulkChange(  # as one that is stored and worked off, but for a few jobs and at once
        operation=operation, by=user.get_username(), user_id=str(user.pk), reason=reason, delay_ms=delay_ms
    )
    became: dict[str, list[str]] = {}
    for job_id in wanted:
        job = jobs.get(job_id)
        outcome = NO_REASON if job is not None and job.topic in strict else _one(change, job, using)
        became.setdefault(outcome, []).append(job.key if job else str(job_id))
    _tell(request, operation, became)


def _one(change: BulkChange, job: Job | None, using: str) -> str:
    """What became of the job. A refusal leaves nothing behind and undoes nothing but itself."""
    with transaction.atomic(using=using):
        outcome = bulk.change_one(change, job, using)
        if job is None or outcome != bulk.DONE_WORDS[Operation(change.operation)]:
            transaction.set_rollback(True, using=using)
        else:
            bulk.log(change, [job], using)
    return outcome


def _tell(request: HttpRequest, operation: Operation, became: dict[str, list[str]]) -> None:
    done = bulk.DONE_WORDS[operation]
    keys = became.pop(done, [])
    if keys:
        messages.success(request, f"{word(done)} {len(keys)}")
    if became:
        parts = "; ".join(f"{word(why)} {len(keys)} ({_names(keys)})" for why, keys in became.items())
        messages.warning(request, f"{REFUSED[operation]}: {parts}")


def _names(keys: list[str]) -> str:
    named = ", ".join(keys[:NAMED])
    rest = len(keys) - NAMED
    return named if rest <= 0 else named + ngettext(" and %(n)d more", " and %(n)d more", rest) % {"n": rest}
