"""Query plans of the lookup by id in PostgreSQL: it uses an index, however many jobs there are."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from tests.support.query_plans import Plan, plans_of

from .conftest import QueueClient

ROWS = 40_000
pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def queue(make_token: Callable[..., str], api: Callable[..., Any], settings: Any) -> QueueClient:
    """A client that sees 20 topics with 40,000 jobs, three quarters ended; 1,000 of the oldest share one key."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {f"t{n}": {} for n in range(22)}}
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at,
                                        ended_at, worker, error)
            SELECT 't' || n %% 20, CASE WHEN n %% 4 > 0 AND n < 1334 THEN 'daily' ELSE 'k' || n END,
                CASE WHEN n %% 4 = 0 THEN 1 ELSE 5 END, now() + n * interval '1 second', 60000, 0, 0, '{}', now(),
                CASE WHEN n %% 4 = 0 THEN NULL ELSE now() END, '', ''
            FROM generate_series(1, %s) AS n""",
            [ROWS],
        )
        cursor.execute("REINDEX TABLE delaytasks_job")  # index bloat of earlier tests would change the costs
        cursor.execute("ANALYZE delaytasks_job")
    return QueueClient(api(make_token(topics={"*": "produce consume"})))


def job_plans(ask: Callable[[], object]) -> list[Plan]:
    return [plan for plan in plans_of(ask) if '"delaytasks_job"' in plan.sql and plan.sql.startswith("SELECT")]


def test_an_id_is_found_by_an_index_whether_it_is_live_ended_often_used_or_unknown(queue: QueueClient) -> None:
    for key in ("k4000", "k4001", "daily", "nobody"):
        plans = job_plans(lambda key=key: queue("peek", id=key))
        assert plans
        for plan in plans:
            assert not plan.scans("delaytasks_job"), f"{key}\n{plan}"
            assert set(plan.indexes) <= {"delaytasks_job_one_live", "delaytasks_job_key"}, f"{key}\n{plan}"


def test_next_job_of_a_topic_is_found_by_an_index_also_in_an_empty_topic(queue: QueueClient) -> None:
    for topic in ("t4", "t5", "t21"):
        (plan,) = job_plans(lambda topic=topic: queue("peek", topic=topic))
        assert plan.indexes == ["delaytasks_job_topic_due"], f"{topic}\n{plan}"
        assert "Sort" not in plan.types, str(plan)
