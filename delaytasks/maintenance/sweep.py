"""The sweep: every half minute, take back expired leases and add jobs that came within the horizon to the mirror.

It also adds missing Topic rows, reports ready jobs of unknown topics, and starts the audit when it is due.
"""

import logging

from .. import conf, databases, handlers, mirror, topics
from ..db import lookups, transitions
from ..db.retries import in_transaction, retry_conflicts
from ..exceptions import MirrorDown
from ..jobs import on_commit
from ..jobs.next_runs import schedule_next
from ..mirror.redis.index import Mirror
from ..models import Topic
from ..worker.completion import expire
from . import inbox, loads, retention
from .audit import audit
from .data_loss import get_or_create_mark, update_mark
from .feed import PAGE, feed
from .guard import try_step

logger = logging.getLogger("delaytasks")


def sweep(using: str | None = None) -> dict[str, int]:
    """Run the sweep. Return counts by name.

    expired     jobs taken back
    again       next runs made live that workers of an older version left behind
    fed         jobs added to the mirror
    unhandled   ready jobs of topics that this process does not know
    pruned      jobs deleted because RETENTION says so
    orphans     events deleted because their job is gone
    inbox       records of inbox messages deleted because INBOX_RETENTION_DAYS have passed

    If the audit ran, its counts are included. Without Redis, the sweep only takes back expired leases, makes next runs
    live, adds missing Topic rows and deletes old jobs.
    """
    using = databases.alias(using)
    counts = {"expired": take_back_expired(using), "again": settle_next_runs(using), "fed": 0, "unhandled": 0}
    _ensure_topics(using)
    index = mirror.connect(using)
    if index is not None and not index.down:
        try:
            counts["fed"] = feed(index, using) + loads.add_to_mirror(using)
            counts["unhandled"] = _report_unhandled(index, using)
            if index.lock("audit", conf.get().audit_seconds * 1000).acquire():
                counts |= _run_audit(using)
        except MirrorDown as error:
            logger.warning("sweep: the mirror was skipped: %s", error)
    # The retention calls rules of the project. One that fails must hold up nothing else.
    pruned = try_step(retention.step, using) or {"pruned": 0, "orphans": 0}
    return counts | pruned | {"inbox": inbox.prune(using)}


def settle_next_runs(using: str) -> int:
    """Make next runs live that workers of an older version ignored when they ended the jobs. Return their number.

    Looks at up to PAGE jobs that are no longer running. A job that waits takes over the terms of its next run; for an
    ended job a new one is scheduled. A next run is dropped, and not counted, if the job was cancelled meanwhile, or if
    its key has a newer job.
    """

    def settle() -> int:
        waiting, ended = transitions.settle_ignored_next_runs(using, PAGE)
        on_commit.add_to_mirror(using, waiting, mark=True)
        schedule_next(using, ended)
        return len(waiting) + len(ended)

    return in_transaction(using, settle)


def record_sweep(using: str) -> None:
    """Record that a worker has completed a sweep, which shows that beat, the broker and the worker's pool work."""
    now = databases.now(using)
    if not update_mark(using, swept_at=now):  # no row yet: without a mirror, only the heartbeat creates it
        get_or_create_mark(using, swept_at=now)


def _run_audit(using: str) -> dict[str, int]:
    counts = audit(using)
    result = {"at_ms": databases.now_ms(using), **counts}
    get_or_create_mark(using)
    update_mark(using, audit=result)
    return counts


def take_back_expired(using: str) -> int:
    """Take back the jobs whose lease has expired. Return how many."""
    after, taken = (0, 0), 0
    while page := lookups.expired(using, after=after, limit=PAGE):
        taken += retry_conflicts(lambda: expire(using, page), using)
        after = (page[-1].due_ms, page[-1].id)
    return taken


def _ensure_topics(using: str) -> None:
    rows = Topic.objects.using(using)
    missing = set(handlers.known()) - set(rows.values_list("name", flat=True))
    new = [Topic(name=name) for name in sorted(missing)]
    retry_conflicts(lambda: rows.bulk_create(new, ignore_conflicts=True), using)


def _report_unhandled(index: Mirror, using: str) -> int:
    """Log and count the ready jobs of topics that this process does not know. They stay ready."""
    counts = index.ready_counts(sorted(index.ready_topics() - {*handlers.known(), *topics.handled(using)}))
    for topic, count in counts.items():
        logger.warning("topic %s: %s jobs are ready, but this process does not know the topic; they stay", topic, count)
    if counts:
        index.count("unhandled", sum(counts.values()))
    return sum(counts.values())
