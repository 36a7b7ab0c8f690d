"""Jobs are reserved a moment before they are due and claimed at their due time: real clock, real Redis."""

from datetime import timedelta
from typing import Any

import pytest

from delaytasks import mirror as mirrors
from delaytasks import schedule
from delaytasks.clock import to_ms
from delaytasks.db import dialects
from delaytasks.models import Job
from delaytasks.worker import claim

pytestmark = pytest.mark.usefixtures("transactional_db")
TOPIC = "ahead"


def test_a_job_that_is_reserved_early_is_claimed_at_its_due_time_at_once(mirror: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "AHEAD_MS": 100, "TOPICS": {TOPIC: {}}}
    job = schedule(TOPIC, key="a", due_at=dialects.database_now("default") + timedelta(milliseconds=150))
    index = mirrors.choose("default")
    assert index.promote_due(job.due_ms - 100, [TOPIC]).topics == {TOPIC}, "the mover promotes it at that time"

    (attempt,) = claim.take(index, TOPIC, 10, using="default", worker="w")

    reserved_at = Job.objects.get().reserved_at
    assert reserved_at is not None
    assert to_ms(reserved_at) >= attempt.due_ms == job.due_ms, "never begun before its due time"
    assert "claim_misses" not in mirror.counters(), "no claim was refused"


def test_a_job_that_is_reserved_much_too_early_is_not_claimed_and_moves_back(mirror: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "AHEAD_MS": 3, "TOPICS": {TOPIC: {}}}
    job = schedule(TOPIC, key="a", delay=600)
    index = mirrors.choose("default")
    assert index.promote_due(job.due_ms, [TOPIC]).topics == {TOPIC}

    assert claim.take(index, TOPIC, 10, using="default", worker="w") == []

    assert Job.objects.get().attempt == 0
    assert mirror.counters()["claim_misses"] == 1
    ((due_at_ms, ready_at_ms),) = mirror.scores([(job.pk, TOPIC)])
    assert ready_at_ms is None
    assert abs(due_at_ms - job.due_ms) < 5_000, "back at its due time, by this host's clock"
