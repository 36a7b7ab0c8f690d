"""From events to what is told of a topic and an hour, step by step."""

from typing import Any

from pyspark.sql import functions as F

from delaytasks.pipeline import schemas, steps
from delaytasks.pipeline.relations import RELATIONS
from delaytasks.states import Outcome, State

from .conftest import at, ms

EVENTS = RELATIONS["events"].chosen(["topic", "outcome", "attempt", "due_ms", "reserved_ms", "done_ms"])
NOON = ms("02-01 12:00")


def event(outcome: Outcome, late: int | None, *, topic: str | None = "order.close", attempt: int = 1,
          done: int = NOON) -> tuple[Any, ...]:  # fmt: skip
    due = NOON - 10_000_000
    return (topic, str(outcome), attempt, due, None if late is None else due + late, done)


def test_an_hour_tells_what_happened_and_how_late_first_attempts_were(spark: Any) -> None:
    rows = [event(Outcome.FINISHED, late) for late in range(1, 101)]
    rows += [event(Outcome.FAILED, 5_000, attempt=2), event(Outcome.EXPIRED, 9_000, attempt=3)]
    rows += [event(Outcome.DEAD, 123_456), event(Outcome.CANCELLED, None), event(Outcome.RESCHEDULED, None)]
    rows += [event(Outcome.FINISHED, 7, topic=None), event(Outcome.SNOOZED, -3, done=NOON - 1)]
    found = steps.by_hour(steps.counted(spark.createDataFrame(rows, EVENTS))).orderBy("hour_at").collect()
    before, noon = (row.asDict() for row in found)

    expected = {"happened": 105, "finished": 100, "retried": 2, "died": 1, "cancelled": 1, "snoozed": 0, "begun": 101}
    assert {name: noon[name] for name in expected} == expected
    assert (noon["late_p50_ms"], noon["late_p95_ms"], noon["late_p99_ms"], noon["late_worst_ms"]) == (
        51, 96, 100, 123_456)  # fmt: skip
    assert sum(each.number for each in noon["late"]) == 101
    assert noon["late"][-1].asDict() == {"ms": 120_000, "number": 1}
    assert (before["happened"], before["snoozed"], before["late_worst_ms"]) == (1, 1, 0)


def test_an_hour_in_which_no_first_attempt_began_has_no_lateness(spark: Any) -> None:
    frame = spark.createDataFrame([event(Outcome.CANCELLED, None)], EVENTS)
    (row,) = steps.by_hour(steps.counted(frame)).collect()

    assert (row.begun, row.late_p50_ms, row.late_worst_ms, row.late) == (0, None, None, [])
    again = steps.summed(spark.createDataFrame([row], schemas.HOURS), ["topic"]).collect()
    assert [(each.happened, each.begun, each.late_p99_ms) for each in again] == [(1, 0, None)]


def test_nothing_is_made_of_nothing(spark: Any) -> None:
    hours = steps.by_hour(steps.counted(spark.createDataFrame([], EVENTS)))
    assert hours.schema.names == schemas.HOURS.names
    assert hours.collect() == []
    jobs = spark.createDataFrame([], RELATIONS["jobs"].chosen(["topic", "state", "due_at", "ended_at"]))
    due = steps.due_by_minute(jobs, NOON, NOON + 1)
    assert (due.schema.names, due.collect()) == (schemas.DUE.names, [])


def test_hours_together_tell_what_their_events_together_would(spark: Any) -> None:
    rows = [event(Outcome.FINISHED, late, done=NOON + late % 3 * 3_600_000) for late in range(100)]
    hours = steps.by_hour(steps.counted(spark.createDataFrame(rows, EVENTS)))
    (row,) = steps.summed(hours, ["topic"]).collect()

    assert (row.happened, row.begun, row.late_p50_ms, row.late_p95_ms, row.late_worst_ms) == (100, 100, 49, 94, 99)


def test_what_falls_due_is_told_by_the_minute_and_what_is_overdue_with_the_first(spark: Any) -> None:
    delayed, reserved, finished = int(State.DELAYED), int(State.RESERVED), int(State.FINISHED)
    rows = [
        ("a", delayed, at("02-01 12:00:59.999"), None), ("a", delayed, at("02-01 12:01"), None),
        ("a", delayed, at("02-01 11:00"), None), ("a", delayed, at("02-01 12:00:30"), None),
        ("a", delayed, at("02-01 13:00"), None), ("a", reserved, at("02-01 12:02"), None),
        ("a", finished, at("02-01 12:02"), at("02-01 12:03")),
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, RELATIONS["jobs"].chosen(["topic", "state", "due_at", "ended_at"]))
    due = steps.due_by_minute(frame, ms("02-01 12:00:30"), ms("02-01 13:00")).orderBy("minute_at")
    found = due.withColumn("ms", F.unix_millis("minute_at")).collect()

    assert [(row.ms, row.due, row.overdue) for row in found] == [(NOON, 1, 2), (NOON + 60_000, 1, 0)]


def test_cutting_keeps_the_first_digits(spark: Any) -> None:
    frame = spark.createDataFrame([(ms,) for ms in (0, 9, 99, 123, 1_999, 987_654)], "ms long")
    assert [row.cut for row in frame.select(steps.cut(F.col("ms"), 2).alias("cut")).collect()] == [
        0, 9, 99, 120, 1_900, 980_000]  # fmt: skip
