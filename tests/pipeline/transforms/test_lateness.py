"""Transforms from events to statistics per topic and hour."""

from typing import Any

from pyspark.sql import functions as F

from delaytasks.pipeline import schemas
from delaytasks.pipeline.sources.relations import RELATIONS
from delaytasks.pipeline.transforms import lateness
from delaytasks.states import Outcome

from ..conftest import ms

EVENTS = RELATIONS["events"].select(["topic", "outcome", "attempt", "due_ms", "reserved_ms", "done_ms"])
NOON = ms("02-01 12:00")


def event(outcome: Outcome, late: int | None, *, topic: str | None = "order.close", attempt: int = 1,
          done: int = NOON) -> tuple[Any, ...]:  # fmt: skip
    due = NOON - 10_000_000
    return (topic, str(outcome), attempt, due, None if late is None else due + late, done)


def test_an_hour_has_counts_and_the_lateness_of_first_attempts(spark: Any) -> None:
    rows = [event(Outcome.FINISHED, late) for late in range(1, 101)]
    rows += [event(Outcome.FAILED, 5_000, attempt=2), event(Outcome.EXPIRED, 9_000, attempt=3)]
    rows += [event(Outcome.DEAD, 123_456), event(Outcome.CANCELLED, None), event(Outcome.RESCHEDULED, None)]
    rows += [event(Outcome.FINISHED, 7, topic=None), event(Outcome.SNOOZED, -3, done=NOON - 1)]
    found = lateness.by_hour(lateness.count_hours(spark.createDataFrame(rows, EVENTS))).orderBy("hour_at").collect()
    before, noon = (row.asDict() for row in found)

    expected = {"happened": 105, "finished": 100, "retried": 2, "died": 1, "cancelled": 1, "snoozed": 0, "begun": 101}
    assert {name: noon[name] for name in expected} == expected
    assert (noon["late_p50_ms"], noon["late_p95_ms"], noon["late_p99_ms"], noon["late_worst_ms"]) == (
        51, 96, 100, 123_456)  # fmt: skip
    assert sum(each.number for each in noon["late"]) == 101
    exact = [10_000_000 - late for late in (*range(1, 101), 5_000, 9_000, 123_456)]
    assert (noon["attempts"], noon["run_total_ms"], sum(each.number for each in noon["run"])) == (103, sum(exact), 103)
    assert [tuple(each) for each in noon["run"]] == [(9_800_000, 1), (9_900_000, 102)]
    assert noon["late"][-1].asDict() == {"ms": 120_000, "number": 1}
    assert (before["happened"], before["snoozed"], before["late_worst_ms"]) == (1, 1, 0)


def test_an_hour_without_a_first_attempt_has_no_lateness(spark: Any) -> None:
    frame = spark.createDataFrame([event(Outcome.CANCELLED, None)], EVENTS)
    (row,) = lateness.by_hour(lateness.count_hours(frame)).collect()

    assert (row.begun, row.late_p50_ms, row.late_worst_ms, row.late) == (0, None, None, [])


def test_an_empty_frame_gives_an_empty_frame(spark: Any) -> None:
    hours = lateness.by_hour(lateness.count_hours(spark.createDataFrame([], EVENTS)))
    assert hours.schema.names == schemas.HOURS.names
    assert hours.collect() == []


def test_rounding_down_keeps_the_first_digits(spark: Any) -> None:
    frame = spark.createDataFrame([(ms,) for ms in (0, 9, 99, 123, 1_999, 987_654)], "ms long")
    assert [row.cut for row in frame.select(lateness.round_down(F.col("ms"), 2).alias("cut")).collect()] == [
        0, 9, 99, 120, 1_900, 980_000]  # fmt: skip
