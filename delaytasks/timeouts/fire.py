"""The handler of a declared timeout: lock the row, test condition and due time again, then call the function.

This test also covers changes that no signal reported. So a job may be late, but it never runs early or with a false
condition.
"""

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import DataError, transaction

from ..db import calendar_days, dialects
from ..handlers import Skip
from ..worker.attempt import Defer, RunningJob
from . import applied_declarations, declarations, renames, statements
from .declarations import Declaration
from .desired_jobs import desired_sql, rows
from .statements import UNMET, past_sql
from .sync import aliases_of, lockable, sync

GONE, PAST, FIRED = "gone", "past", "fired"  # reasons for skipping a job, like statements.UNMET
WAIT_SECONDS = 0.1  # how long a run slot waits for a locked row
STEP_SECONDS = 0.01
LOCKED_RETRY_MS = 200
NOT_APPLIED_RETRY_MS = 5_000  # for a worker whose code matches the applied declaration
LONGEST_NOT_APPLIED_RETRY_MS = 300_000


class Fire:
    """The function that is registered as the handler: it calls the declared function with the row and the job."""

    def __init__(self, declaration: Declaration, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.declaration, self.function = declaration, function
        # For handlers.Handler.home: where the function is defined. A service level wraps the declared function.
        self.__code__ = getattr(inspect.unwrap(function), "__code__", None)

    def __call__(self, job: RunningJob) -> Any:
        with transaction.atomic(job.using, savepoint=False):  # joins the transaction of an atomic handler
            try:
                row = _lock(self.declaration, job)
            except DataError:  # the row is locked, but has a value that Python cannot read: PostgreSQL's infinity
                row, reason = None, _reason_to_skip(self.declaration, _pk(self.declaration, job), job)
                if reason is None:
                    raise
            else:
                reason = GONE if row is None else _reason_to_skip(self.declaration, row.pk, job)
        job.may_fire_later = reason == UNMET or row is None
        return self.function(row, job) if reason is None else Skip(reason)


def _lock(declaration: Declaration, job: RunningJob) -> Any:
    """Lock and return the job's row, or None if it is gone. Raises Defer if others hold its lock for too long."""
    pk = _pk(declaration, job)
    if pk is None or job.using not in aliases_of(declaration):
        return None
    deadline = time.monotonic() + WAIT_SECONDS
    found = lockable(declaration, job.using, skip_locked=True, whole=True).filter(pk=pk)
    while (row := found.first()) is None:
        if not rows(declaration, job.using).filter(pk=pk).exists():
            return None
        if time.monotonic() > deadline:
            raise Defer(delay_ms=LOCKED_RETRY_MS)
        time.sleep(STEP_SECONDS)
    if not isinstance(row, declaration.model):
        row.__class__ = declaration.model  # not read by the managers of a proxy, which may hide the row
    return row


def _pk(declaration: Declaration, job: RunningJob) -> Any:
    text = declaration.pk_of(job.key) if job.subject_pk is None else job.subject_pk
    try:
        return None if text is None else declaration.pk.to_python(text)
    except ValidationError:
        return None


class _Facts(NamedTuple):
    desired_ms: int | None  # the due time that the row declares; None: the condition is false
    declared_ms: int | None  # the due time for which the job was made; None: a person scheduled it
    past: bool  # True: desired_ms has passed so long ago that if_past skips it
    is_older: bool  # True: a newer job had a declared time; this one was dead, and a person has retried it
    fingerprint: str | None  # of the applied declaration
    now_ms: int


def _reason_to_skip(declaration: Declaration, pk: Any, job: RunningJob) -> str | None:
    """Return None if the job is to run, otherwise the reason to skip it. Raises Defer if it is to run later."""
    if declaration.calendar is not None:
        calendar_days.refresh(declaration.calendar.name)  # read the days that staff have just changed
    facts = _facts(declaration, pk, job)
    is_applied = applied_declarations.is_automatic() or facts.fingerprint == declaration.fingerprint
    has_former_name = not renames.is_installed(job.subject_label or declaration.label)
    if has_former_name and is_applied and facts.declared_ms is not None:
        return GONE  # the row has a job of its model's new name
    if facts.desired_ms is None and is_applied:
        return UNMET
    if facts.desired_ms is not None and facts.declared_ms in (None, facts.desired_ms):
        return None
    if not is_applied:
        delay_ms = _not_applied_delay_ms(facts)
        if delay_ms > 0:
            raise Defer(delay_ms=delay_ms)
        return None
    if facts.past or facts.is_older:
        return PAST if facts.past else FIRED
    raise Defer(declared_ms=facts.desired_ms)


def _not_applied_delay_ms(facts: _Facts) -> int:
    """Return the delay in ms before retrying a job that is not due by this process's code; 0 or less: run it now.

    Another process may have newer code, so the job keeps its declared time. The delay is as long as the job is late,
    within limits, and ends no later than the due time that this process computes.
    """
    late_ms = 0 if facts.declared_ms is None else facts.now_ms - facts.declared_ms
    delay_ms = min(max(late_ms, NOT_APPLIED_RETRY_MS), LONGEST_NOT_APPLIED_RETRY_MS)
    return delay_ms if facts.desired_ms is None else min(delay_ms, facts.desired_ms - facts.now_ms)


def _facts(declaration: Declaration, pk: Any, job: RunningJob) -> _Facts:
    d = dialects.get_dialect(job.using)
    desired, params = desired_sql(declaration, [pk], job.using)
    sql = f"""
        WITH delaytasks_desired (pk, declared_ms) AS MATERIALIZED ({desired})
        SELECT declared_ms, {d.to_ms("job.declared_due")}, coalesce({past_sql(declaration, d)}, false),
            EXISTS (SELECT 1 FROM delaytasks_job AS newer WHERE newer.topic = job.topic AND newer.key = job.key
                AND newer.id > job.id AND newer.declared_due IS NOT NULL),
            (SELECT fingerprint FROM delaytasks_declaration WHERE topic = %s), {d.to_ms(d.now)}
        FROM delaytasks_job AS job LEFT JOIN delaytasks_desired ON 1 = 1 WHERE job.id = %s"""
    with dialects.cursor(job.using) as cursor:
        cursor.execute(sql, [*params, declaration.topic, job.id])
        found = cursor.fetchone()
    return _Facts(*found) if found else _Facts(None, None, False, False, declaration.fingerprint, 0)


def sync_row(using: str, held: Any) -> None:
    """Sync the row of a job of which an attempt has just ended: make its next job, or move the one that waits again.

    The row's due time may have changed while the job was running: no sync changes a running job. Commits together with
    the end of the attempt. If another transaction has locked the row, the row is marked for a later sync: that
    transaction may have changed no job because it saw this one running. Waiting for the lock could deadlock.
    """
    from .triggers import marks  # imports models, but this module is imported before the app registry is ready

    declaration = declarations.find(held.topic)
    if declaration is None or using not in aliases_of(declaration):
        return
    pk = declaration.pk_of(held.key)
    if pk is not None:
        if getattr(held, "may_fire_later", False):
            statements.forget(held.id, using)
        marks.add(declaration, sync(declaration, [pk], using=using, skip_locked=True).locked_pks, using)
