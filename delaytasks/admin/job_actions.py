"""Change the jobs that a user selected, within the request: each job in its own transaction with its own result.

The results are those of a bulk change: outcomes.Result.
"""

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.db import OperationalError, router, transaction
from django.db.models import Max, Min
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from .. import admin_log, formatting, permissions
from ..admin_log import Action
from ..bulk import apply
from ..bulk.changes import WAIT_MS
from ..db import dialects
from ..db.retries import is_retryable, retry_conflicts, waited_too_long
from ..jobs import audit_log
from ..models import BulkChange, Job
from ..outcomes import DONE, Result
from ..querysets import LARGE_COLUMNS
from . import display
from .changelist import parse_id

MAX_NAMES = 10  # refused jobs named in a message; the others are counted

Operation = BulkChange.Operation
CANCEL, POSTPONE, RUN_NOW, RETRY = Operation.CANCEL, Operation.POSTPONE, Operation.RUN_NOW, Operation.RETRY
NAMES = {CANCEL: "cancel_jobs", POSTPONE: "postpone_jobs", RUN_NOW: "run_jobs_now", RETRY: "retry_jobs"}
REFUSED = {
    CANCEL: gettext_lazy("not cancelled"),
    POSTPONE: gettext_lazy("not postponed"),
    RUN_NOW: gettext_lazy("not made ready"),
    RETRY: gettext_lazy("not retried"),
}


def operate(
    request: HttpRequest, operation: Operation, ids: Iterable[int], reason: str = "", delay_ms: int | None = None
) -> None:
    """Apply an operation to each job of `ids`, write the admin log, and add a message with the results.

    delay_ms   how far to postpone; for POSTPONE only

    Jobs of topics that the user may not see count as missing. Without a reason, jobs whose topic requires one are
    not changed. A job whose due time differs from the one on the page is not postponed, so that a double click
    postpones it once.
    """
    user: Any = request.user
    audit_log.set_source(audit_log.source_of(request))
    shown_due_ms = _shown_due_ms(request)
    job_ids, using = list(ids), router.db_for_write(Job)
    jobs = permissions.visible_jobs(Job.objects.using(using), user).defer(*LARGE_COLUMNS).in_bulk(job_ids)
    need_reason = set() if reason else permissions.topics_requiring_reason(using)
    change = BulkChange(  # not saved: apply.change_one() takes a BulkChange
        operation=operation, by=user.get_username(), user_id=str(user.pk), reason=reason, delay_ms=delay_ms
    )
    keys_by_result: dict[str, list[str]] = {}
    changed_ids = []
    for job_id in job_ids:
        job = jobs.get(job_id)
        is_refused = job is not None and job.topic in need_reason
        result = Result.NEEDS_REASON if is_refused else _change_one(change, job, using, shown_due_ms.get(job_id))
        keys_by_result.setdefault(result, []).append(job.key if job else str(job_id))
        if result == DONE[operation]:
            changed_ids.append(job_id)
    new_times = _new_times(request, using, changed_ids) if operation in (POSTPONE, RUN_NOW) else ""
    _add_messages(request, operation, keys_by_result, new_times)


def _shown_due_ms(request: HttpRequest) -> dict[int, int]:
    """Return {job ID: due time in ms that the page showed}, from form values such as `seen=42:1893456000000`."""
    pairs = (text.partition(":") for text in request.POST.getlist("seen"))
    known = ((parse_id(job), parse_id(due)) for job, _, due in pairs)
    return {job: due for job, due in known if job is not None and due is not None}


def _change_one(change: BulkChange, job: Job | None, using: str, shown_due_ms: int | None) -> str:
    """Change a job and return the result. A refusal rolls back this job only.

    Waits only briefly for a locked job: the transaction that has locked it may be a long one.
    """

    def change_and_log() -> str:
        with transaction.atomic(using=using), dialects.lock_timeout(using, WAIT_MS):
            result, success = apply.change_one(change, job, using, shown_due_ms), DONE[change.operation]
            if job is None or result != success:
                transaction.set_rollback(True, using=using)
            else:
                admin_log.write(change.user_id, [job], Action.of(success), change.reason)
        return result

    try:
        return retry_conflicts(change_and_log, using)
    except OperationalError as error:
        if not is_retryable(error) and not waited_too_long(error):
            raise
        return Result.BUSY


def _new_times(request: HttpRequest, using: str, ids: list[int]) -> str:
    """Return a text with the new due time of a job, or the first and the last one of several; "" for no job."""
    if not ids:
        return ""
    times = Job.objects.using(using).filter(pk__in=ids).aggregate(first=Min("due_at"), last=Max("due_at"))
    with timezone.override(display.viewer_zone(request)):
        first, last = (formatting.absolute(times[name]) for name in ("first", "last"))
    if first == last:
        return _("due at %(time)s") % {"time": first}
    return _("due from %(first)s to %(last)s") % {"first": first, "last": last}


def _add_messages(
    request: HttpRequest, operation: Operation, keys_by_result: dict[str, list[str]], new_times: str
) -> None:
    done = DONE[operation]
    keys = keys_by_result.pop(done, [])
    if keys:
        text = _("%(outcome)s %(n)d") % {"outcome": formatting.result(done), "n": len(keys)}
        if new_times:
            text = _("%(done)s, %(times)s") % {"done": text, "times": new_times}
        messages.success(request, text)
    if keys_by_result:
        parts = pgettext("between the parts of a list", "; ").join(
            _refused(result, keys) for result, keys in keys_by_result.items()
        )
        messages.warning(request, _("%(refused)s: %(why)s") % {"refused": REFUSED[operation], "why": parts})


def _refused(result: str, keys: list[str]) -> str:
    values = {"outcome": formatting.result(result), "n": len(keys), "names": _names(keys)}
    return _("%(outcome)s %(n)d (%(names)s)") % values


def _names(keys: list[str]) -> str:
    named = formatting.join(keys[:MAX_NAMES])
    rest = len(keys) - MAX_NAMES
    return named if rest <= 0 else named + ngettext(" and %(n)d more", " and %(n)d more", rest) % {"n": rest}
