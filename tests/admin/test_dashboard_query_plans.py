"""Query plans of the board on PostgreSQL: bounded index scans in order, never a whole table."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from delaytasks.db import counts, dialects
from delaytasks.monitoring import forecast, last_hour
from tests.support.query_plans import Plan, plans_of

ROWS = 50_000
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.xdist_group("board plans")]


@pytest.fixture(scope="module")
def _table(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """50,000 jobs of ten topics, half of them live, 5,000 overdue, some dead, with their events; never vacuumed."""
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at,
                                            ended_at, died_at, worker, error)
                SELECT 't' || n %% 10, 'k' || n,
                    CASE WHEN n %% 2 = 0 THEN 1 WHEN n %% 25 = 1 THEN 6 ELSE 4 END,
                    now() + (n - 10000) * interval '3 seconds', 60000, 0, 0, '{}', now(),
                    CASE WHEN n %% 2 = 0 THEN NULL ELSE now() END,
                    CASE WHEN n %% 2 = 1 AND n %% 25 = 1 THEN now() END, '', ''
                FROM generate_series(1, %s) AS n""",
                [ROWS],
            )
            cursor.execute(
                """
                INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor,
                                                 error, reason)
                SELECT n, 'finished', 1, ms - 20, ms - 10, ms, 'w', '', '', '' FROM (
                    SELECT id AS n, extract(epoch FROM now())::bigint * 1000 - (%s - id) * 200 AS ms
                    FROM delaytasks_job ORDER BY id) AS happened""",
                [ROWS],
            )
            cursor.execute("ANALYZE delaytasks_job, delaytasks_jobevent")
        yield
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE delaytasks_job, delaytasks_jobevent")


@pytest.fixture(autouse=True)
def _topic(_table: None, db: None) -> None:
    """Override the fixture of conftest.py: these tests only read, by the database's own clock."""
    dialects.set_clock(None)


def plans(query: Callable[[], Any]) -> list[Plan]:
    """Return the plans of the queries on jobs and events, with the planner settings in effect."""
    with counts.by_index("default"):
        all_plans = plans_of(query)
    return [plan for plan in all_plans if "FROM delaytasks_job" in plan.sql]


TOPICS = [f"t{n}" for n in range(10)]
NUMBERS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "minutes": (lambda: forecast.minutes("default", None), {"delaytasks_job_live_due"}),
    "minutes of topics": (lambda: forecast.minutes("default", TOPICS), {"delaytasks_job_topic_due"}),
    "hours": (lambda: forecast.hours("default", None), {"delaytasks_job_live_due"}),
    "hours of topics": (lambda: forecast.hours("default", TOPICS), {"delaytasks_job_topic_due"}),
    "statuses": (
        lambda: forecast.topic_statuses("default", TOPICS), {"delaytasks_job_topic_due", "delaytasks_job_topic_dead"},
    ),
    "next due": (lambda: counts.next_due("default", TOPICS), {"delaytasks_job_topic_due"}),
    "the last hour": (lambda: last_hour.last_hour("default"), {"delaytasks_jobevent_pkey", "delaytasks_job_pkey"}),
}  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_each_number_is_read_from_its_index_in_order(number):
    query, indexes = NUMBERS[number]
    found = plans(query)
    assert found
    for plan in found:
        assert not plan.scans("delaytasks_job"), str(plan)
        assert not plan.scans("delaytasks_jobevent"), str(plan)
        assert not [kind for kind in plan.types if "Bitmap" in kind], str(plan)
        of_jobs = {index for index in plan.indexes if not index.startswith("delaytasks_topic_")}  # topics are few
        assert of_jobs <= indexes, str(plan)


def test_the_next_due_time_is_found_without_reading_the_overdue_jobs():
    for plan in plans(lambda: counts.next_due("default", TOPICS)):
        assert "Index Cond: ((ROW(topic, due_at) > ROW(" in str(plan), str(plan)


def test_the_jobs_of_a_topic_are_counted_without_reading_those_of_others():
    found = [plan for plan in plans(lambda: forecast.topic_statuses("default", TOPICS)) if "before)" in plan.sql]
    assert found
    for plan in found:
        assert "Index Cond: ((ROW(topic, due_at) >= ROW(" in str(plan), str(plan)


@pytest.mark.parametrize("rows", [counts.FIRST_ROWS, 10_000_000])
def test_no_count_sorts_rows(monkeypatch, rows):
    monkeypatch.setattr(counts, "FIRST_ROWS", rows)
    for query, _indexes in (NUMBERS[name] for name in ("minutes", "hours of topics", "statuses", "next due")):
        for plan in plans(query):
            assert not [kind for kind in plan.types if "Sort" in kind], str(plan)


def test_the_topics_that_have_jobs_are_found_without_reading_the_jobs():
    for query in (lambda: counts.live_topics("default"), lambda: counts.dead_topics("default")):
        (plan,) = plans(query)
        assert not plan.scans("delaytasks_job"), str(plan)
        assert {node.type for node in plan.nodes if node.relation == "delaytasks_job"} == {"Index Only Scan"}, str(plan)
    assert counts.live_topics("default") == ["t0", "t2", "t4", "t6", "t8"]


def test_the_planner_settings_of_a_count_end_with_it():
    def bitmaps() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW enable_bitmapscan")
            return cursor.fetchone()[0]

    forecast.minutes("default", None)
    assert bitmaps() == "on"


def test_the_counts_are_correct():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM delaytasks_job WHERE ended_at IS NULL AND due_at > now() AND due_at < now() +"
            " interval '1 hour'"
        )
        expected = cursor.fetchone()[0]
    found = forecast.minutes("default", None).sum
    assert found.complete
    assert abs(found.number - expected) <= 15  # the last minute is incomplete
    with connection.cursor() as cursor:
        cursor.execute("SELECT topic, count(*) FROM delaytasks_job WHERE died_at IS NOT NULL GROUP BY topic")
        dead = dict(cursor.fetchall())
    statuses = forecast.topic_statuses("default", None)
    assert {name: each.dead.number for name, each in statuses.items() if each.dead.number} == dead
    assert all(each.dead.complete for each in statuses.values())
