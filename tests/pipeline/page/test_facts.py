"""The figures of a report's page: their hours and topics."""

from typing import Any

import pyarrow
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from delaytasks.pipeline import schemas
from delaytasks.pipeline.applications.stale_hours import HOUR_MS, MINUTE_MS
from delaytasks.pipeline.page import facts, page
from delaytasks.pipeline.page.facts import Need

from ..conftest import at, ms

END = ms("02-10 15:00")
NOW = END + 17 * MINUTE_MS
WEEK = 7 * 24


def hour(hours_ago: int, happened: int, topic: str = "order.close") -> tuple[Any, ...]:
    """Start of the hour that began this long before the end of the last full hour."""
    counts = (happened, happened, 0, 0, 0, 0, happened)
    run = (
        (happened, happened * 1_500, [{"ms": 1_500, "number": happened}]) if happened != 3 else (None, None, None)
    )  # of an older report
    return (topic, at("02-10 15:00").fromtimestamp((END - hours_ago * HOUR_MS) / 1000, at("02-10 15:00").tzinfo),
            *counts, 4, 5, 6, 7, [{"ms": 4, "number": happened}], *run)  # fmt: skip


def table(schema: StructType, rows: list[tuple[Any, ...]]) -> pyarrow.Table:
    return pyarrow.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], to_arrow_schema(schema, timezone="UTC")
    )


def test_days_are_full_hours_and_overdue_jobs_of_all_topics_are_counted() -> None:
    rows = [hour(0, 1), hour(1, 10), hour(24, 100), hour(25, 1_000)]  # the hour that is not over; a day; before it
    rows += [hour(WEEK, 10_000), hour(WEEK + 1, 20), hour(WEEK + 24, 200), hour(WEEK + 25, 2_000)]
    rows += [hour(2 * WEEK, 7), hour(2 * WEEK + 1, 8), hour(3, 3, "refund.ask")]
    first = at("02-10 15:17")
    due = [(f"idle:{n:02}", first, 0, 2) for n in range(60)] + [("order.close", first, 5, 1)]
    due += [("order.close", at("02-10 16:16"), 6, 0), ("refund.ask", at("02-10 16:16"), 1, 0)]
    batches = [table(schemas.HOURS, rows[:4]), table(schemas.HOURS, rows[4:])]
    batches[0] = pyarrow.table(batches[0].columns, schemas.HOURS.names)  # as read from a file: each column may be null
    found = facts.facts(batches, table(schemas.DUE, due), NOW, NOW + HOUR_MS)
    busy, asks, *idle = found.topics

    assert facts.first_ms(NOW) == END - 2 * WEEK * HOUR_MS
    assert (busy.name, busy.day["happened"], busy.before["happened"]) == ("order.close", 110, 220)
    assert (busy.hours[0], busy.hours[-1], sum(busy.hours)) == (100, 10, 110)
    assert (busy.due, busy.overdue, busy.day["late_p95_ms"]) == (11, 1, 4)
    assert (asks.name, asks.day["happened"], asks.before) == ("refund.ask", 3, {})
    assert [each.get("happened") for each in found.hours[-25:-23]] == [1_000, 100]
    assert (found.hours[-1]["happened"], found.hours[0]["happened"]) == (10, 10_000)
    assert (found.before[-1]["happened"], found.before[0]["happened"], len(found.before)) == (20, 7, WEEK)
    assert (len(found.minutes), found.minutes[0], found.minutes[59], sum(found.minutes)) == (60, 5, 7, 12)

    assert (busy.run_mean_ms, busy.run_p95_ms, asks.run_mean_ms, asks.run_p95_ms) == (1_500, 1_500, None, None)
    assert found.needs == [
        Need(END, 5 + 60 * 2 + 1, 6 * 1_500, 60 * 2, 6 / 2_400),
        Need(END + HOUR_MS, 6 + 1, 6 * 1_500, 1, 6 / 2_400),
    ]
    assert [(each.slots, each.minutes) for each in found.needs] == [(1, 1), (1, 1)]
    assert (len(idle), found.more_topics) == (facts.MAX_TOPICS - 2, 60 + 2 - facts.MAX_TOPICS)
    assert found.overdue == 60 * 2 + 1
    assert "22 more topics" in page.html(found)


@pytest.mark.parametrize(
    ("jobs", "means", "slots", "minutes"),
    [
        ((1,), (5 * HOUR_MS,), 1, 300),
        ((3,), (40 * MINUTE_MS,), 3, 40),
        ((4,), (20 * MINUTE_MS,), 2, 40),
        ((108_000,), (100 / 3,), 1, 60),
        ((1,), (1,), 1, 1),
        ((1, 1, 1), (20 * MINUTE_MS,) * 3, 1, 60),
        ((5, 7), (0, None), 0, 0),
    ],
)
def test_a_slot_runs_whole_jobs_and_a_job_needs_one_slot(
    jobs: tuple[int, ...], means: tuple[float | None, ...], slots: int, minutes: int
) -> None:
    names = [f"topic:{n}" for n in range(len(jobs))]
    due = pyarrow.table({"topic": names, "ms": [END] * len(jobs), "due": jobs, "overdue": [0] * len(jobs)})
    known = {name: mean for name, mean in zip(names, means, strict=True) if mean is not None}

    (need,) = facts._needs(due, known)
    assert (need.jobs, need.slots, need.minutes) == (sum(jobs), slots, minutes)


def test_without_hours_and_due_jobs_there_are_no_topics() -> None:
    found = facts.facts([], table(schemas.DUE, []), NOW, NOW + HOUR_MS)
    assert (found.topics, found.more_topics, found.overdue, found.needs, found.herds) == ([], 0, 0, [], [])
    assert (found.hours, found.before, found.minutes) == ([{}] * WEEK, [{}] * WEEK, [0] * 60)
