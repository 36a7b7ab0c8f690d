"""Change the jobs that a person selected, at once: each in its own transaction, each with its truthful answer.

The words of an answer are the engine's, the same for one job and for ten thousand. They are
stored in English and shown in the reader's language.
"""

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.db import OperationalError, router, transaction
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from .. import rights, stafflog, visits, words
from ..conflicts import asks_to_try_again, retried_once
from ..models import BulkChange, Job
from .changelist import number_of

NAMED = 10  # refused jobs that a message names; the others are counted

Operation = BulkChange.Operation
CANCEL, POSTPONE, RUN_NOW, RETRY = Operation.CANCEL, Operation.POSTPONE, Operation.RUN_NOW, Operation.RETRY
NO_REASON = "its topic asks for a reason"
BUSY = "the database was busy"
WORDS = {
    "cancelled": gettext_lazy("cancelled"),
    "postponed": gettext_lazy("postponed"),
    "made ready": gettext_lazy("made ready"),
    "retried": gettext_lazy("retried"),
    "already running": gettext_lazy("already running"),
    "already finished": gettext_lazy("already finished"),
    "already cancelled": gettext_lazy("already cancelled"),
    "already ready": gettext_lazy("already ready"),
    "moved meanwhile": gettext_lazy("moved meanwhile"),
    "dead": gettext_lazy("dead"),
    "not dead": gettext_lazy("not dead"),
    "its key is live again": gettext_lazy("its key is live again"),
    "no longer there": gettext_lazy("no longer there"),
    NO_REASON: gettext_lazy("its topic asks for a reason"),
    BUSY: gettext_lazy("the database was busy"),
}
REFUSED = {
    CANCEL: gettext_lazy("not cancelled"),
    POSTPONE: gettext_lazy("not postponed"),
    RUN_NOW: gettext_lazy("not made ready"),
    RETRY: gettext_lazy("not retried"),
}


def word(outcome: str) -> str:
    """A stored outcome in the reader's language; as it stands if it is none of ours."""
    if outcome.startswith(visits.ERROR):
        return _("failed: %(error)s") % {"error": outcome.removeprefix(visits.ERROR)}
    return str(WORDS.get(outcome, outcome))


def operate(
    request: HttpRequest, operation: Operation, ids: Iterable[int], reason: str = "", delay_ms: int | None = None
) -> None:
    """Do `operation` to every job of `ids`, log what changed and tell the person what happened to each.

    delay_ms   by how much to postpone; belongs to POSTPONE alone

    A job of a topic that they may not see is no longer there for them; one whose topic asks for a
    reason is left alone without one. One that the page showed with another due time is not postponed:
    a button that is pressed twice means once.
    """
    user: Any = request.user
    seen = _seen(request)
    wanted, using = list(ids), router.db_for_write(Job)
    jobs = rights.visible(Job.objects.using(using), user).defer("body", "error").in_bulk(wanted)
    strict = set() if reason else rights.asking(using)
    change = BulkChange(  # as one that is stored and worked off, but for a few jobs and at once
        operation=operation, by=user.get_username(), user_id=str(user.pk), reason=reason, delay_ms=delay_ms
    )
    became: dict[str, list[str]] = {}
    for job_id in wanted:
        job = jobs.get(job_id)
        outcome = NO_REASON if job is not None and job.topic in strict else _one(change, job, using, seen.get(job_id))
        became.setdefault(outcome, []).append(job.key if job else str(job_id))
    _tell(request, operation, became)


def _seen(request: HttpRequest) -> dict[int, int]:
    """When each job was due, in ms, on the page that the person saw: `seen=42:1893456000000`, once for each."""
    pairs = (text.partition(":") for text in request.POST.getlist("seen"))
    known = ((number_of(job), number_of(due)) for job, _, due in pairs)
    return {job: due for job, due in known if job is not None and due is not None}


def _one(change: BulkChange, job: Job | None, using: str, seen_due_ms: int | None) -> str:
    """What became of the job. A refusal leaves nothing behind and undoes nothing but itself."""

    def whole() -> str:
        with transaction.atomic(using=using):
            outcome = visits.change_one(change, job, using, seen_due_ms)
            if job is None or outcome != visits.DONE_WORDS[Operation(change.operation)]:
                transaction.set_rollback(True, using=using)
            else:
                stafflog.write(change.user_id, [job], outcome.capitalize(), change.reason)
        return outcome

    try:
        return retried_once(whole, using)
    except OperationalError as error:
        if not asks_to_try_again(error):
            raise
        return BUSY


def _tell(request: HttpRequest, operation: Operation, became: dict[str, list[str]]) -> None:
    done = visits.DONE_WORDS[operation]
    keys = became.pop(done, [])
    if keys:
        messages.success(request, _("%(outcome)s %(n)d") % {"outcome": word(done), "n": len(keys)})
    if became:
        parts = pgettext("between the parts of a list", "; ").join(_refused(why, keys) for why, keys in became.items())
        messages.warning(request, _("%(refused)s: %(why)s") % {"refused": REFUSED[operation], "why": parts})


def _refused(why: str, keys: list[str]) -> str:
    said = {"outcome": word(why), "n": len(keys), "names": _names(keys)}
    return _("%(outcome)s %(n)d (%(names)s)") % said


def _names(keys: list[str]) -> str:
    named = words.listed(keys[:NAMED])
    rest = len(keys) - NAMED
    return named if rest <= 0 else named + ngettext(" and %(n)d more", " and %(n)d more", rest) % {"n": rest}
