"""Delete the inboxes' records of messages that are too old for a broker to deliver again."""

import time
from datetime import timedelta

from django.db.models import QuerySet

from .. import conf, databases
from ..db.retries import retry_conflicts
from ..models import InboxMessage

BATCH = 2000  # rows deleted by one transaction
STEP_SECONDS = 0.2  # of each sweep: a pool process does nothing else meanwhile; the thread of the retention goes on


def prune(using: str, seconds: float | None = None) -> int:
    """Delete the messages that were received more than INBOX_RETENTION_DAYS ago. Return the number of rows.

    seconds   when to stop; at least one batch is deleted. None: STEP_SECONDS
    """
    deadline, deleted = time.monotonic() + (STEP_SECONDS if seconds is None else seconds), 0
    while page := list(_old(using).order_by("received_at").values_list("id", flat=True)[:BATCH]):
        rows = InboxMessage.objects.using(using).filter(id__in=page)
        deleted += retry_conflicts(rows.delete, using)[0]
        if time.monotonic() >= deadline:
            break
    return deleted


def is_unfinished(using: str) -> bool:
    """Return whether there are messages for prune() to delete."""
    return _old(using).exists()


def _old(using: str) -> QuerySet[InboxMessage]:
    before = databases.now(using) - timedelta(days=conf.get().inbox_retention_days)
    return InboxMessage.objects.using(using).filter(received_at__lt=before)
