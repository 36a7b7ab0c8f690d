"""Delete the inboxes' records of messages that are too old for a broker to deliver again."""

import time
from datetime import timedelta

from .. import conf, databases
from ..models import InboxMessage

BATCH = 2000  # rows deleted by one transaction
STEP_SECONDS = 0.2  # of each sweep, because a pool process does nothing else meanwhile; the next sweep continues


def prune(using: str) -> int:
    """Delete the messages that were received more than INBOX_RETENTION_DAYS ago. Return the number of rows."""
    before = databases.now(using) - timedelta(days=conf.get().inbox_retention_days)
    rows, deadline, deleted = InboxMessage.objects.using(using), time.monotonic() + STEP_SECONDS, 0
    while page := list(
        rows.filter(received_at__lt=before).order_by("received_at").values_list("id", flat=True)[:BATCH]
    ):
        deleted += rows.filter(id__in=page).delete()[0]
        if time.monotonic() > deadline:
            break
    return deleted
