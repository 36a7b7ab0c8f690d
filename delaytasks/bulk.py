"""One change to many jobs: a snapshot of which, worked through in small pieces, each job with its own truthful answer.

The snapshot is taken when somebody confirms, so what they saw is what is acted upon, and each job
is visited once: what is postponed does not come round again. It is done piece by piece, each in one transaction
with how far it is, for some seconds of a Celery task, which then sends the next; the sweep sends it again if one
was lost. What becomes of each job: visits.py.

A piece waits for nobody, because others would then have to wait for the hundreds of jobs that it has locked:
what somebody else holds is put off, and tried again when all others are done.
"""

import logging
import time
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery import current_app
from django.contrib.auth import get_user_model
from django.db import OperationalError, transaction
from django.db.models import F
from kombu.exceptions import OperationalError as BrokerDown

from . import clock, dialect, engine, rights
from .conflicts import retried_once, waited_too_long
from .exceptions import BadInput
from .models import BulkChange
from .promises import check_actor
from .visits import visit

logger = logging.getLogger("delaytasks")
MOST = 100_000  # jobs of one change
PIECE = 500  # jobs of one transaction
TASK = "delaytasks.bulk_change"
AT_ONCE = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
STALLED_SECONDS = 30
WAIT_MS = 250  # for what no look could tell to be held: a key that is being scheduled, the row of a person
PAUSE_SECONDS = 0.5  # before what is held is tried again
KEPT_DAYS = 90  # after its end; the events of its jobs say who and why as long as there are these jobs

Operation, Standing = BulkChange.Operation, BulkChange.State
NOT_ALLOWED = "Who asked for this may not change jobs any more."
UNDER_WAY = (Standing.WAITING, Standing.RUNNING)
HALTED = (Standing.STOPPED, Standing.FAILED)


def start(
    operation: str,
    ids: Sequence[int],
    *,
    by: str,
    user_id: Any = "",
    reason: str = "",
    delay_ms: int | None = None,
    wish: dict[str, Any] | None = None,
    using: str | None = None,
) -> BulkChange:
    """Ask for a change to these jobs; it begins when the transaction commits and a worker has time.

    operation   "cancel", "postpone" (then delay_ms says by how much), "run_now", "retry"
    ids         of the jobs, at most 100,000; each is visited once, in this order
    wish        what was chosen by, for people to read

    Raises BadInput.
    """
    using = engine.alias(using)
    if operation not in Operation.values:
        raise BadInput(f"operation is {operation!r}; it is one of {', '.join(Operation.values)}.")
    if (operation == Operation.POSTPONE) != (delay_ms is not None):
        raise BadInput("delay_ms says by how much to postpone, and belongs to nothing else.")
    check_actor(by)
    check_actor(reason, what="reason")
    if not 0 < len(ids) <= MOST:
        raise BadInput(f"{len(ids):,} jobs were chosen; from 1 to {MOST:,} can be changed at once.")
    ids = list(dict.fromkeys(ids))
    made = BulkChange.objects.using(using).create(
        operation=operation, ids=ids, total=len(ids), by=by, user_id=str(user_id or ""), reason=reason,
        delay_ms=delay_ms, wish=wish or {}, created_at=_now(using),
    )  # fmt: skip
    transaction.on_commit(lambda: send(made.pk, using), using=using, robust=True)
    return made


def send(pk: int, using: str) -> None:
    """Ask a worker to go on with the change. A broker that does not answer is asked again by the sweep.

    A person waits for it. So it has a connection of its own: Celery's shared one is tried for six seconds.
    """
    try:
        with current_app.connection_for_write(transport_options=AT_ONCE) as connection:
            current_app.send_task(TASK, (pk, using), connection=connection, retry=False, ignore_result=True)
    except (BrokerDown, OSError) as error:
        logger.warning("bulk change %s was not sent to a worker, the sweep sends it again: %s", pk, error)


def stop(pk: int, *, using: str | None = None) -> bool:
    """Leave the rest of the change undone; False if it has ended. The piece at work is finished first."""
    using = engine.alias(using)
    return _end(pk, using, state=Standing.STOPPED)


def fail(pk: int, error: str, *, using: str) -> None:
    """Say that the change cannot go on by itself."""
    _end(pk, using, state=Standing.FAILED, error=error[:10_000])


def _end(pk: int, using: str, **how: Any) -> bool:
    """Which jobs it was is kept: it can go on."""
    rows = BulkChange.objects.using(using).filter(pk=pk, state__in=UNDER_WAY)
    return bool(rows.update(**how, ended_at=_now(using)))


def can_go_on(pk: int, *, using: str | None = None) -> bool:
    """Whether it was stopped or has failed, and something of it is left to be done."""
    return _halted(pk, engine.alias(using)).exists()


def go_on(pk: int, *, using: str | None = None) -> bool:
    """Go on with a change that was stopped or has failed, where it was; False if there is none to go on with."""
    using = engine.alias(using)
    with transaction.atomic(using):
        terms = {"state": Standing.WAITING, "error": "", "ended_at": None, "worked_at": _now(using)}
        begun = bool(_halted(pk, using).update(**terms))
        if begun:
            transaction.on_commit(lambda: send(pk, using), using=using, robust=True)
    return begun


def _halted(pk: int, using: str) -> Any:
    rows = BulkChange.objects.using(using).filter(pk=pk, state__in=HALTED, position__lt=F("total"))
    return rows.exclude(ids=[])  # as earlier versions left them


def stalled(using: str) -> list[int]:
    """The changes under way that nobody has worked on for a while."""
    since = _now(using) - timedelta(seconds=STALLED_SECONDS)
    under_way = BulkChange.objects.using(using).filter(state__in=UNDER_WAY)
    quiet = under_way.filter(worked_at__lt=since) | under_way.filter(worked_at=None, created_at__lt=since)
    return list(quiet.order_by("pk").values_list("pk", flat=True))


def _now(using: str) -> datetime:
    """By the database's clock: those who write these times and those who compare them are on many hosts."""
    return clock.from_ms(engine.now_ms(using))


# -- the work -----------------------------------------------------------------------------------


class Work(NamedTuple):
    """What is known of a change for all its pieces of one task."""

    pk: int
    using: str
    ids: list[int]  # read once: they may be a megabyte
    only: Collection[str] | None  # the topics that whoever asked may see; None: all


def work(pk: int, *, using: str, seconds: float = 5.0) -> bool:
    """Go on with a change for a while; whether there is more to do."""
    over = time.monotonic() + seconds
    under_way = BulkChange.objects.using(using).filter(pk=pk, state__in=UNDER_WAY)
    found = under_way.values_list("ids", "user_id").first()
    if found is None:
        return False
    ids, user_id = found
    allowed, only = _rights(user_id, using)
    if not allowed:
        fail(pk, NOT_ALLOWED, using=using)
        return False
    while (visited := _piece_soon(Work(pk, using, ids, only))) is not None:
        rest = over - time.monotonic()
        if rest <= 0:
            return True
        if not visited:
            time.sleep(min(PAUSE_SECONDS, rest))
    return False


def _rights(user_id: str, using: str) -> tuple[bool, Collection[str] | None]:
    """Whether who asked may still change jobs, and of which topics. A program may, all."""
    if not user_id:
        return True, None
    user = get_user_model()._default_manager.filter(pk=user_id).first()
    if user is None or not rights.operates(user):
        return False, None
    return True, rights.visible_topics(user, using)


def _piece_soon(at_work: Work) -> int | None:
    """A piece; nothing was visited if even the rows beside the jobs were held."""
    try:
        return retried_once(lambda: _piece(at_work), at_work.using)
    except OperationalError as error:
        if not waited_too_long(error):
            raise
        return 0


def _piece(at_work: Work) -> int | None:
    """Change the next few jobs, in one transaction with how far that is; how many, or None if nothing is left to do.

    So a killed worker leaves no job changed and not counted, and of two that work at once one goes home.
    """
    using = at_work.using
    with transaction.atomic(using):
        dialect.wait_at_most(using, WAIT_MS)
        found = BulkChange.objects.using(using).select_for_update(skip_locked=True)
        change = found.defer("ids").filter(pk=at_work.pk, state__in=UNDER_WAY).first()
        if change is None:
            return None
        passed = change.position + len(change.put_off)
        ids, later = at_work.ids[passed : passed + PIECE], change.put_off
        if not ids:
            ids, later = later[:PIECE], later[PIECE:]
        left = visit(change, ids, at_work.only, using)
        change.put_off = [*later, *left]
        return len(ids) - len(left) if _store_progress(change, len(ids) - len(left), using) else None


def _store_progress(change: BulkChange, visited: int, using: str) -> bool:
    """Whether it goes on."""
    now = _now(using)
    change.position += visited
    change.worked_at = now
    if change.state != Standing.FAILED:
        change.state = Standing.DONE if change.position >= change.total else Standing.RUNNING
    written = ["position", "put_off", "outcomes", "samples", "worked_at", "state", "error"]
    if change.state == Standing.DONE:
        change.ids = []
        written.append("ids")
    if change.state != Standing.RUNNING:
        change.ended_at = now
    change.save(using=using, update_fields=[*written, "ended_at"])
    return change.state == Standing.RUNNING


def prune(using: str) -> None:
    """Forget the changes that ended long ago."""
    long_ago = _now(using) - timedelta(days=KEPT_DAYS)
    BulkChange.objects.using(using).filter(ended_at__lt=long_ago).delete()
