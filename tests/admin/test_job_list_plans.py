"""What PostgreSQL does for the list of jobs: an index and its order, never the whole table."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from delaytasks.models import Job
from delaytasks.states import State
from tests.contract.plans import Plan, plans_of

from .conftest import NOW, TOPIC

LIST = "/admin/delaytasks/job/"
ROWS = 20_000

pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def large(db: None) -> None:
    """20,000 jobs: most of them pending, some overdue, some finished."""
    rows = [
        Job(
            topic=TOPIC,
            key=f"order:{n}",
            state=State.FINISHED if n % 4 == 0 else State.DELAYED,
            ended_at=NOW if n % 4 == 0 else None,
            due_at=NOW + timedelta(seconds=n - 500),
            ttr_ms=1000,
            created_at=NOW,
        )
        for n in range(ROWS)
    ]
    Job.objects.bulk_create(rows, batch_size=2000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delaytasks_job")


def plan_of(client: Any, query: dict[str, str]) -> Plan:
    (plan,) = [p for p in plans_of(lambda: client.get(LIST, query)) if '"delaytasks_job"' in p.sql]
    return plan


SERVED_BY: list[tuple[dict[str, str], str]] = [
    ({}, "delaytasks_job_pkey"),
    ({"p": "50"}, "delaytasks_job_pkey"),
    ({"state": "finished"}, "delaytasks_job_pkey"),
    ({"state": "dead"}, "delaytasks_job_dead"),
    ({"state": "live"}, "delaytasks_job_live_due"),
    ({"state": "live", "o": "-4"}, "delaytasks_job_live_due"),
    ({"state": "delayed"}, "delaytasks_job_live_due"),
    ({"state": "ready"}, "delaytasks_job_live_due"),
    ({"state": "reserved"}, "delaytasks_job_live_due"),
    ({"due": "overdue"}, "delaytasks_job_live_due"),
    ({"due": "hour"}, "delaytasks_job_live_due"),
    ({"due": "later", "topic": TOPIC}, "delaytasks_job_live_due"),
    ({"q": "order:1042"}, "delaytasks_job_key"),
]


def test_each_view_is_served_by_its_index(admin_client, large):
    for query, index in SERVED_BY:
        plan = plan_of(admin_client, query)
        assert not plan.scans("delaytasks_job"), f"{query}\n{plan}"
        assert plan.indexes == [index], f"{query}\n{plan}"


def test_a_number_is_looked_up_by_two_indexes(admin_client, large):
    plan = plan_of(admin_client, {"q": "1042"})
    assert not plan.scans("delaytasks_job"), str(plan)
    assert set(plan.indexes) == {"delaytasks_job_pkey", "delaytasks_job_key"}, str(plan)


def test_the_orders_come_from_an_index_and_are_not_sorted(admin_client, large):
    for query in ({}, {"state": "live"}, {"state": "delayed"}, {"due": "later"}):
        plan = plan_of(admin_client, query)
        assert "Sort" not in plan.types, f"{query}\n{plan}"
