"""Reconciliation: compare all rows of each declaration with their jobs, a page at a time, and correct the jobs.

A page is compared without locks. Only rows whose jobs differ are locked and synced; rows that others have locked are
left to the next pass. After the rows, a pass compares the live jobs, to cancel those of deleted rows.

The guard makes short steps, and begins a pass every RECONCILE_SECONDS. The Declaration row stores the position.
"""

import logging
import math
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import Q

from .. import conf, databases
from ..db import dialects
from ..db.counts import by_index
from ..db.retries import in_transaction, retry_conflicts, waited_too_long
from ..models import Declaration as AppliedDeclaration
from ..models import Job
from . import applied_declarations, declarations, renames, statements
from .declarations import Declaration
from .desired_jobs import among, key_text, rows
from .sync import Synced, aliases_of, keys_of, sync

PAGE = 1000
LOCK_MS = 100  # how long a step of the guard waits for a lock, which a migration may hold
STEP_SECONDS = 0.2  # of one step of the guard, for all declarations together
AFTER_EDIT = timedelta(seconds=2)  # from the edit of a calendar to the pass; longer than db.calendar_days caches days
ROWS, JOBS, DONE = "rows", "jobs", ""

logger = logging.getLogger("delaytasks")
_resting: dict[tuple[str, str], float] = {}  # alias and topic of a failed pass -> monotonic time of the next try
_logged: dict[tuple[str, str], float] = {}  # alias and topic of a pass that waits -> monotonic time of the log entry


class Page(NamedTuple):
    """The result of one page.

    phase      phase of the next page: ROWS, JOBS, or DONE if this page was the last
    position   where the next page begins: after this primary key (as text) or job's key; "": at the beginning
    """

    synced: Synced
    phase: str
    position: str


def reconcile(using: str, only: Sequence[Declaration] | None = None) -> dict[str, Synced]:
    """Make one complete pass for each of these declarations; None: for all. Return {topic: counts}.

    Changes no job of a declaration that is not applied.
    """
    chosen = declarations.declarations() if only is None else only
    return {each.topic: _whole_pass(each, using) for each in chosen if using in aliases_of(each)}


def _whole_pass(declaration: Declaration, using: str) -> Synced:
    total, phase, position = Synced(), ROWS, ""
    while phase != DONE:
        page = retry_conflicts(partial(next_page, declaration, using, phase, position), using)
        total, phase, position = add(total, page.synced), page.phase, page.position
    return total


def add(first: Synced, second: Synced) -> Synced:
    return Synced(
        first.made + second.made, first.moved + second.moved, first.cancelled + second.cancelled,
        [*first.locked_pks, *second.locked_pks],
    )  # fmt: skip


def step_all(using: str) -> None:
    """Continue or begin the passes that are due, for about STEP_SECONDS in all, but at least by a page.

    Called in each guard. A declaration whose pass fails, for example because a migration is missing, rests for
    RECONCILE_SECONDS. One that waits for a lock is tried again by the next guard, and logged once in RECONCILE_SECONDS.
    """
    if not declarations.registered():
        return
    deadline = time.monotonic() + STEP_SECONDS
    here = {each.topic: each for each in declarations.declarations() if using in aliases_of(each)}
    if applied_declarations.is_automatic():
        for declaration in here.values():
            applied_declarations.ensure_row(declaration, using)
    for topic, fingerprint in _due(using, list(here)).order_by("began_at").values_list("topic", "fingerprint"):
        if fingerprint == here[topic].fingerprint and time.monotonic() >= _resting.get((using, topic), 0.0):
            _try_step(here[topic], using, deadline)
            if time.monotonic() >= deadline:
                break


def _due(using: str, topics: Sequence[str]) -> Any:
    """Return the rows of these declarations whose pass is in progress or must begin."""
    before = databases.now(using) - timedelta(seconds=conf.get().reconcile_seconds)
    found = AppliedDeclaration.objects.using(using).filter(topic__in=topics)
    return found.filter(~Q(phase=DONE) | Q(began_at=None) | Q(began_at__lte=before))


def calendar_changed(*, using: str, **_: Any) -> None:
    """Begin a pass of each declaration that uses a calendar, soon after the commit of a change of a day.

    The day may have been one of another calendar before. The pass is delayed, because other processes may use cached
    days for up to a second.
    """
    transaction.on_commit(_begin_passes, using=using, robust=True)


def _begin_passes() -> None:
    for declaration in declarations.declarations():
        if declaration.calendar is not None and declaration.calendar.editable:
            for alias in aliases_of(declaration):
                _try_begin(declaration, alias)


def _try_begin(declaration: Declaration, using: str) -> None:
    """Let a pass begin AFTER_EDIT from now. An error is logged: it must not keep others from their passes."""
    try:
        began_at = databases.now(using) + AFTER_EDIT - timedelta(seconds=conf.get().reconcile_seconds)
        found = AppliedDeclaration.objects.using(using).filter(topic=declaration.topic)
        retry_conflicts(lambda: found.update(phase=DONE, position="", began_at=began_at), using)
    except Exception:
        logger.exception("%s: no pass began in %r after the edit of a calendar", declaration.topic, using)


def _try_step(declaration: Declaration, using: str, deadline: float) -> None:
    try:
        while retry_conflicts(lambda: _stored_page(declaration, using), using) and time.monotonic() < deadline:
            pass
    except Exception as error:
        if not connections[using].is_usable():
            raise
        name, now, pause = (using, declaration.topic), time.monotonic(), conf.get().reconcile_seconds
        if not waited_too_long(error):
            logger.exception("%s: its rows could not be reconciled", declaration.topic)
            _resting[name] = now + pause
        elif now - _logged.get(name, -math.inf) >= pause:
            _logged[name] = now
            logger.warning("%s: reconciliation waits for a lock, the next guard tries again: %s", name[1], error)


def _stored_page(declaration: Declaration, using: str) -> bool:
    """Make the next page of the current pass, or begin one if that is due. Return whether there may be more.

    The Declaration row is locked, so that only one process at a time makes pages.
    """
    now = databases.now(using)
    with transaction.atomic(using):
        dialects.wait_at_most(using, LOCK_MS)
        found = _due(using, [declaration.topic]).filter(fingerprint=declaration.fingerprint)
        mark = found.select_for_update(skip_locked=True).first()
        if mark is None:
            return False
        if mark.phase == DONE:
            mark.began_at = now
        page = next_page(declaration, using, mark.phase or ROWS, mark.position)
        mark.phase, mark.position = page.phase, page.position
        mark.save(using=using, update_fields=["phase", "position", "began_at"])
    return page.phase != DONE


def next_page(declaration: Declaration, using: str, phase: str, position: str) -> Page:
    """Compare and sync the page after `position`, in the caller's transaction or in one of its own."""
    pks, phase, position = _pks_of_page(declaration, using, phase, position)
    return Page(sync_different(declaration, pks, using), phase, position)


def _pks_of_page(declaration: Declaration, using: str, phase: str, position: str) -> tuple[list[Any], str, str]:
    """Return the primary keys to compare for the page after `position`, and the phase and position of the next page."""
    if phase == ROWS:
        pks = _page_of_rows(declaration, using, position)
        end = (key_text(declaration, pks[-1]) or str(pks[-1])) if pks else ""
        return pks, *((ROWS, end) if len(pks) == PAGE else (JOBS, ""))
    keys = _page_of_keys(declaration, using, position)
    gone = _without_row(declaration, using, keys)
    return gone, *((JOBS, keys[-1]) if len(keys) == PAGE else (DONE, ""))


def _page_of_rows(declaration: Declaration, using: str, position: str) -> list[Any]:
    found = rows(declaration, using).order_by("pk")
    if position:
        found = found.filter(pk__gt=declaration.pk.to_python(position))
    return list(found.values_list("pk", flat=True)[:PAGE])


def _page_of_keys(declaration: Declaration, using: str, position: str) -> list[str]:
    """Return the keys of live jobs that the declaration made, in order.

    While its statistics do not contain a new topic, PostgreSQL expects a single job, and might otherwise read and sort
    all live jobs of the topic for each page.
    """
    jobs = Job.objects.using(using).filter(topic=declaration.topic, ended_at=None, declared_due__isnull=False)
    with by_index(using):
        return list(jobs.filter(key__gt=position).order_by("key").values_list("key", flat=True)[:PAGE])


def _without_row(declaration: Declaration, using: str, keys: Sequence[str]) -> list[Any]:
    """Return the primary keys of the rows that no longer exist, for the jobs with these keys."""
    found = keys_of(declaration, [text for key in keys if (text := declaration.pk_of(key)) is not None])
    there = set(among(declaration, [pk for _, pk in found], using).values_list("pk", flat=True))
    return [pk for _, pk in found if pk not in there]


def sync_different(declaration: Declaration, pks: Sequence[Any], using: str) -> Synced:
    """Compare these rows with their jobs without locks; lock and sync those that differ, except locked ones."""
    if not pks:
        return Synced()
    keys = keys_of(declaration, pks)
    different = statements.differences(declaration, keys, using, gated=not applied_declarations.is_automatic())
    by_text = dict(keys)
    texts = dict.fromkeys([*(each.pk for each in different), *declaration.outdated(pks, using)])
    wrong = [by_text[text] for text in texts]
    return sync(declaration, wrong, using=using, skip_locked=True) if wrong else Synced()


class Plan(NamedTuple):
    """The changes that applying a declaration now would make.

    state     "applied", "new" or "changed"
    overdue   how many of the jobs to make or to move have a due time that has passed
    """

    topic: str
    state: str
    make: int
    move: int
    cancel: int
    overdue: int


def plan(using: str, only: Sequence[Declaration] | None = None) -> list[Plan]:
    """Count what each declaration would make, move and cancel. Writes nothing.

    Locks nothing, unless a model was renamed: then its jobs.
    """
    chosen = declarations.declarations() if only is None else only
    plans = []
    for each in chosen:
        if using in aliases_of(each):
            with renames.as_if_renamed(each, using):
                plans.append(_plan(each, using))
    return plans


def _plan(declaration: Declaration, using: str) -> Plan:
    counts, overdue = dict.fromkeys(("make", "move", "cancel"), 0), 0
    is_applied = not applied_declarations.not_applied(using, [declaration])
    known = AppliedDeclaration.objects.using(using).filter(topic=declaration.topic).exists()
    phase, position = ROWS, ""
    while phase != DONE:
        pks, phase, position = _pks_of_page(declaration, using, phase, position)
        for each in statements.differences(declaration, keys_of(declaration, pks), using, gated=is_applied):
            counts[each.change] += 1
            overdue += each.change != "cancel" and each.overdue
    state = "applied" if is_applied else "changed" if known else "new"
    return Plan(declaration.topic, state, **counts, overdue=overdue)


def apply(
    using: str, overdue: applied_declarations.Overdue | None = None, only: Sequence[Declaration] | None = None
) -> dict[str, Synced]:
    """Put the new and changed declarations into force, and make a complete pass for each of them.

    overdue   for rows whose due time has passed already: "run" their jobs now, "skip" them, or a timedelta over which
              the jobs are spread
    only      apply these declarations; None: all

    Raises OverdueRows and changes nothing if there are such rows and `overdue` is None.
    """
    chosen = declarations.declarations() if only is None else only
    pending = [each for each in applied_declarations.not_applied(using, chosen) if using in aliases_of(each)]
    late = {each.topic: each.overdue for each in plan(using, pending) if each.overdue} if overdue is None else {}
    if late:
        raise OverdueRows(late)

    def store() -> None:
        for declaration in pending:
            applied_declarations.store(declaration, using, "run" if overdue is None else overdue)

    in_transaction(using, store)
    return reconcile(using, pending)


class OverdueRows(Exception):
    """apply() found rows whose due time has passed already: call it again with `overdue`.

    counts   {topic: number of such rows}
    """

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__(counts)
        self.counts = counts
