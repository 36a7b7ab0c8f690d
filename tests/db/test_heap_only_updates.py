"""Claims change no index, so PostgreSQL makes heap-only updates."""

import pytest
from django.db import connection, transaction

from delaytasks import schedule_many
from delaytasks.db import transitions
from delaytasks.models import Job


def hot_updates(cursor) -> int:
    """Return the number of heap-only updates of jobs in this transaction."""
    cursor.execute("SELECT pg_stat_get_xact_tuples_hot_updated('delaytasks_job'::regclass)")
    return cursor.fetchone()[0]


@pytest.mark.only_on("postgresql")
def test_claims_are_heap_only_updates(stage):
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(100))
    with transaction.atomic(), connection.cursor() as cursor:
        ids = list(Job.objects.values_list("id", flat=True)[:10])
        before = hot_updates(cursor)
        assert len(transitions.claim("default", "t", ids, "w")) == 10
        assert hot_updates(cursor) - before == 10
