"""Each page needs a bounded number of queries, regardless of the amount of data."""

from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job, Topic
from delaytasks.states import Outcome, State

from .conftest import TOPIC, make_event, make_job

pytestmark = [pytest.mark.on_both, pytest.mark.usefixtures("no_worker")]  # the statements differ by database

ADMIN = "/admin/delaytasks/"
FEW, MANY = 3, 300
# The maximum number of queries of each page, including session and user. On PostgreSQL each scan or count runs in a
# savepoint, with four more statements.
PAGES = {
    "job/{job}/change/": 10,
    "job/{job}/now/": 9,
    "job/": 12,
    "job/?state=live": 12,
    "job/?state=dead": 12,
    f"job/?topic={TOPIC}&state=ready": 13,
    "job/?q=order": 13,
    "board/": 4,
    "bulkchange/": 7,
    "bulkchange/{change}/change/": 7,
    "bulkchange/{change}/progress/": 5,
}
COUNTING = {  # with more rows it counts in more rounds, up to a time limit
    "topic/": 44,
    f"topic/{TOPIC}/change/": 44,
    "board/numbers/": 70,
    f"board/numbers/?topic={TOPIC}": 62,
}


def fill(first: int, last: int) -> None:
    """Create jobs in each state with events, topics, and bulk changes."""
    for n in range(first, last):
        Topic.objects.create(name=f"topic.{n:03}", paused=n % 2 == 0)
        states = list(State)
        job = make_job(f"order:{n}", states[n % len(states)], topic=TOPIC if n % 3 else f"topic.{n:03}")
        make_event(job, Outcome.FAILED, attempt=1, reserved_ms=1, error="boom")
        make_event(Job.objects.get(key="the one"), Outcome.SNOOZED, attempt=1, reserved_ms=1, next_due_ms=1)
        changes.start("cancel", [job.pk], by="anna", selection={"topics": {job.topic: 1}})


def test_pages_need_as_many_queries_for_three_hundred_rows_as_for_three(admin_client: Any) -> None:
    job = make_job("the one")
    fill(0, FEW)
    change = BulkChange.objects.earliest("pk")

    def query_count(page: str) -> int:
        cache.clear()
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(ADMIN + page.format(job=job.pk, change=change.pk)).status_code == 200, page
        return len(captured)

    few = {page: query_count(page) for page in PAGES | COUNTING}
    fill(FEW, MANY)
    many = {page: query_count(page) for page in PAGES | COUNTING}
    assert {page: count for page, count in many.items() if count > (PAGES | COUNTING)[page]} == {}
    assert {page: (few[page], many[page]) for page in PAGES if many[page] > few[page] + 2} == {}


def test_counting_the_matches_of_a_numeric_search_needs_few_queries(admin_client: Any) -> None:
    fill_jobs = [make_job(f"order:{n}") for n in range(FEW)]
    for query, most in (("q=1042", 30), ("state=live", 30), (f"topic={TOPIC}", 40)):
        counts = []
        for _ in range(2):
            with CaptureQueriesContext(connection) as captured:
                assert admin_client.get(f"{ADMIN}job/all/?{query}").status_code == 200
            counts.append(len(captured))
            fill_jobs += [make_job(f"more:{len(fill_jobs)}:{n}") for n in range(MANY)]
        assert abs(counts[1] - counts[0]) <= 4
        assert max(counts) <= most, f"{query}: {counts}"
