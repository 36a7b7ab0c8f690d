"""Classes of promises: every combination of rows, jobs and attempts, on tiny frames."""

import re
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from delaytasks.outcomes import ErrorCode
from delaytasks.pipeline.rules.rules import Rule
from delaytasks.pipeline.sources.relations import RELATIONS
from delaytasks.pipeline.transforms import promises
from delaytasks.states import ENDED, Outcome, State
from delaytasks.timeouts.fire import GONE, PAST
from delaytasks.timeouts.statements import UNMET

from ..conftest import at, ms

JOBS = RELATIONS["jobs"].select(promises.JOBS)
EVENTS = RELATIONS["job_events_with_key"].select(promises.EVENTS)
ORDERS = "number string, placed_at timestamp, status string"
RULE = Rule(
    where="audit.toml, rule 1", topic="order.close", columns={}, key="concat('order:', number)", since="placed_at",
    when="status <> 'draft'", holds="status = 'open'", delay_seconds=1800, late_seconds=5,
)  # fmt: skip
PLACED, DUE, NOW = at("02-01 11:30"), at("02-01 12:00"), at("02-01 13:00")
SECOND = timedelta(seconds=1)
FINISHED, CANCELLED, DEAD, DELAYED, RESERVED = (
    State.FINISHED, State.CANCELLED, State.DEAD, State.DELAYED, State.RESERVED)  # fmt: skip


class World:
    """Business rows, jobs and events, as frames."""

    def __init__(self) -> None:
        self.orders: list[tuple[Any, ...]] = []
        self.jobs: list[tuple[Any, ...]] = []
        self.events: list[tuple[Any, ...]] = []
        self.ids = count(1)

    def order(self, number: str | None, status: str | None = "open", placed_at: Any = PLACED) -> None:
        self.orders.append((number, placed_at, status))

    def job(self, number: str, state: State, *attempts: tuple[Any, ...], **columns: Any) -> None:
        """attempts: outcome, seconds from the due time to the start, and, of some, the event's error and reason."""
        job_id, due_at, due_ms = next(self.ids), columns.get("due_at", DUE), ms("02-01 12:00")
        ended_at = columns.get("ended_at", due_at + SECOND) if state in ENDED else None
        self.jobs.append((
            job_id, f"order:{number}", int(state), due_at, columns.get("attempt", len(attempts)),
            columns.get("reserved_at"), columns.get("lease_until"), ended_at,
            columns.get("created_at", PLACED),
        ))  # fmt: skip
        for attempt, (outcome, late, *texts) in enumerate(attempts, 1):
            begun = outcome not in (Outcome.CANCELLED, Outcome.RESCHEDULED, Outcome.RETRIED)
            reserved_ms = due_ms + round(late * 1000) if begun else None
            self.events.append((f"order:{number}", str(outcome), attempt, due_ms, reserved_ms, *(texts or ("", ""))))

    def keys(self, spark: Any, rule: Rule = RULE) -> DataFrame:
        columns = ["id", "key", "state", "due_at", "attempt", "reserved_at", "lease_until", "ended_at", "created_at"]
        jobs = spark.createDataFrame(self.jobs, StructType([JOBS[name] for name in columns]))
        events = spark.createDataFrame(self.events, EVENTS)
        rows = promises.promised_jobs(spark.createDataFrame(self.orders, ORDERS), rule)
        return promises.by_key(rows, promises.summarize_jobs(jobs), promises.summarize_events(events))

    def classed(self, spark: Any, column: str = "class", rule: Rule = RULE) -> dict[str | None, str]:
        """Return key -> its class, or another column."""
        found = promises.classify(self.keys(spark, rule), rule, ms("02-01 13:00"))
        assert found.schema.names == promises.CLASSIFIED.names
        return {row.key and row.key.removeprefix("order:"): row[column] for row in found.collect()}


@pytest.fixture
def world() -> World:
    return World()


ONCE = (Outcome.FINISHED, 0.003)
EXPIRED = (Outcome.SKIPPED, 1, str(ErrorCode.TOO_LATE), "")


def test_each_combination_of_rows_jobs_and_attempts_has_its_class(spark: Any, world: World) -> None:
    def add_case(name: str, *jobs: tuple[Any, ...], status: str | None = "open", **order: Any) -> None:
        if order.pop("row", True):
            world.order(name, status, **order)
        for state, *attempts in jobs:
            columns = attempts.pop() if attempts and isinstance(attempts[-1], dict) else {}
            world.job(name, state, *attempts, **columns)

    sooner, later = {"ended_at": DUE - 60 * SECOND}, {"ended_at": DUE + 60 * SECOND}
    tomorrow = DUE + timedelta(days=1)
    expected: dict[str, str] = {}
    cases: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
        "finished": ("kept", ((FINISHED, ONCE),), {}),
        "finished, its events are gone": ("kept", ((FINISHED,),), {}),
        "finished after it failed and snoozed": (
            "kept", ((FINISHED, (Outcome.FAILED, 0), (Outcome.SNOOZED, 900), ONCE),), {}),
        "died, was retried and finished": (
            "kept", ((FINISHED, (Outcome.DEAD, 1), (Outcome.RETRIED, 0), (Outcome.FINISHED, 2000)),), {}),
        "died, and another one finished": ("kept", ((DEAD, (Outcome.DEAD, 1), sooner), (FINISHED, ONCE)), {}),
        "called off, made again and finished": ("kept", ((CANCELLED, sooner), (FINISHED, ONCE)), {}),
        "called off for a reason": ("kept", ((CANCELLED,),), {"status": "paid"}),
        "called off, and the status is not known": ("kept", ((CANCELLED,),), {"status": None}),
        "called off": ("called_off", ((CANCELLED, (Outcome.CANCELLED, 0)),), {}),
        "called off twice": ("called_off", ((CANCELLED, sooner), (CANCELLED,)), {}),
        "died, then another one was called off": ("called_off", ((DEAD, sooner), (CANCELLED, later)), {}),
        "died, then one was called off for a reason": (
            "kept", ((DEAD, sooner), (CANCELLED, later)), {"status": "paid"}),
        "expired": ("late", ((CANCELLED, EXPIRED),), {"status": "paid"}),
        "failed, and expired before its retry": (
            "late", ((CANCELLED, (Outcome.FAILED, 0), EXPIRED),), {"status": "paid"}),
        "its condition was no longer true": (
            "kept", ((CANCELLED, (Outcome.SKIPPED, 1, "", UNMET)),), {"status": "paid"}),
        "died": ("died", ((DEAD, (Outcome.DEAD, 0)),), {}),
        "called off, then another one died": ("died", ((CANCELLED, sooner), (DEAD, later)), {}),
        "died, having begun late": ("died", ((DEAD, (Outcome.DEAD, 99)),), {}),
        "waits": ("open", ((DELAYED, {"due_at": tomorrow}),), {"placed_at": tomorrow - 1800 * SECOND}),
        "called off, waits again": ("open", ((CANCELLED, sooner), (DELAYED, {"due_at": tomorrow})), {}),
        "died, and another one waits": ("open", ((DEAD, sooner), (DELAYED, {"due_at": tomorrow})), {}),
        "was moved": ("open", ((DELAYED, (Outcome.RESCHEDULED, 0), {"due_at": tomorrow}),), {}),
        "waits to be retried": ("open", ((DELAYED, (Outcome.FAILED, 1), {"due_at": NOW + SECOND}),), {}),
        "due, but not for long": (
            "open", ((DELAYED, {"due_at": NOW - SECOND}),), {"placed_at": NOW - 1801 * SECOND}),
        "runs": ("open", ((RESERVED, {"attempt": 1, "reserved_at": DUE, "lease_until": NOW}),), {}),
        "overdue": ("late", ((DELAYED,),), {}),
        "overdue again": ("late", ((DELAYED, (Outcome.FAILED, 0)),), {}),
        "its holder is gone": (
            "late", ((RESERVED, {"attempt": 1, "reserved_at": DUE, "lease_until": NOW - 6 * SECOND}),), {}),
        "runs, having begun late": (
            "late", ((RESERVED, {"attempt": 1, "reserved_at": DUE + 6 * SECOND, "lease_until": NOW}),), {}),
        "begun five seconds late": ("kept", ((FINISHED, (Outcome.FINISHED, 5)),), {}),
        "begun late": ("late", ((FINISHED, (Outcome.FINISHED, 5.001)),), {}),
        "begun late by the rule": ("late", ((FINISHED, ONCE),), {"placed_at": PLACED - 6 * SECOND}),
        "overdue by the rule": ("late", ((DELAYED, {"due_at": tomorrow}),), {}),
        "moved, so the rule's time is nothing to it": (
            "kept", ((FINISHED, (Outcome.RESCHEDULED, 0), (Outcome.FINISHED, 1)),), {"placed_at": NOW}),
        "begun a millisecond early": ("early", ((FINISHED, (Outcome.FINISHED, -0.001)),), {}),
        "runs early": (
            "early", ((RESERVED, {"attempt": 1, "reserved_at": DUE - SECOND, "lease_until": NOW}),), {}),
        "clocks that differ by a second": ("kept", ((FINISHED, ONCE),), {"placed_at": PLACED + SECOND}),
        "begun early by the rule": ("early", ((FINISHED, ONCE),), {"placed_at": PLACED + 2 * SECOND}),
        "one job finished twice": ("twice", ((FINISHED, ONCE, ONCE),), {}),
        "two jobs finished": ("twice", ((FINISHED, ONCE), (FINISHED, ONCE)), {}),
        "two jobs wait": ("twice", ((DELAYED, {"due_at": tomorrow}), (DELAYED, {"due_at": tomorrow})), {}),
        "finished, and another one waits": ("twice", ((FINISHED, ONCE), (DELAYED, {"due_at": tomorrow})), {}),
        "has no job": ("missing", (), {}),
        "has no row": ("orphan", ((FINISHED, ONCE),), {"row": False}),
        "a draft that has a job nevertheless": ("kept", ((FINISHED, ONCE),), {"status": "draft"}),
    }  # fmt: skip
    for name, (word, jobs, about) in cases.items():
        add_case(name, *jobs, **about)
        expected[name] = word
    add_case("a draft", status="draft")
    add_case("of no known status", status=None)

    assert world.classed(spark) == expected


def test_a_job_whose_handler_was_not_called_has_not_begun(spark: Any, world: World) -> None:
    texts = {
        "expired": EXPIRED[2:],
        "skipped by its handler": ("", "so"),
        **{why: ("", why) for why in (UNMET, GONE, PAST)},
    }
    for name, (error, reason) in texts.items():
        world.order(name, "paid")
        world.job(name, CANCELLED, (Outcome.SKIPPED, 1, error, reason))

    begun = world.classed(spark, "begun_at", replace(RULE, outcome="true"))
    assert [name for name, begun_at in begun.items() if begun_at] == ["skipped by its handler"]
    assert set(world.classed(spark, "late_ms").values()) == {1000}


def test_each_combination_of_jobs_has_its_status(spark: Any, world: World) -> None:
    sooner, later = {"ended_at": DUE - 60 * SECOND}, {"ended_at": DUE + 60 * SECOND}
    failed = (Outcome.FAILED, -30)
    cases: dict[str, tuple[str | None, tuple[Any, ...]]] = {
        "cancelled before its due time": ("cancelled_in_time", ((CANCELLED, sooner),)),
        "died, then another one was cancelled before any attempt": (
            "cancelled_in_time", ((DEAD, {"ended_at": DUE - 90 * SECOND}), (CANCELLED, sooner))),
        "cancelled at its due time": ("cancelled_late", ((CANCELLED, {"ended_at": DUE}),)),
        "cancelled in time, made again and cancelled late": (
            "cancelled_late", ((CANCELLED, sooner), (CANCELLED, later))),
        "failed, cancelled before its retry": ("cancelled_late", ((CANCELLED, failed, sooner),)),
        "died, then another one was cancelled": ("cancelled_late", ((DEAD, sooner), (CANCELLED, later))),
        "finished": ("ran", ((FINISHED, ONCE),)),
        "finished, its events are gone": ("ran", ((FINISHED,),)),
        "finished and died": ("ran", ((FINISHED, ONCE), (DEAD, (Outcome.DEAD, 1), later))),
        "died": ("dead", ((DEAD, (Outcome.DEAD, 1)),)),
        "cancelled in time, then another one died": ("dead", ((CANCELLED, sooner), (DEAD, later))),
        "waits": ("live", ((DELAYED,),)),
        "finished, and another one waits": ("live", ((FINISHED, ONCE), (DELAYED,))),
        "expired": ("cancelled_late", ((CANCELLED, EXPIRED),)),
        "has no job": (None, ()),
    }  # fmt: skip
    for name, (_, jobs) in cases.items():
        world.order(name)
        for state, *attempts in jobs:
            columns = attempts.pop() if attempts and isinstance(attempts[-1], dict) else {}
            world.job(name, state, *attempts, **columns)

    assert world.classed(spark, "status") == {name: status for name, (status, _) in cases.items()}


def test_null_and_duplicate_values_of_a_rule_get_classes_of_their_own(spark: Any, world: World) -> None:
    world.order(None)
    world.order(None, "draft")
    world.order("1", placed_at=None)
    world.order("2")
    world.order("2")
    world.order("3")
    world.order("3", "draft")  # an older version of the row, say
    world.order("4", "draft", None)
    world.job("3", FINISHED, ONCE)

    assert world.classed(spark) == {None: "no_key", "1": "no_since", "2": "same_key", "3": "kept"}


def test_the_row_that_needs_the_job_says_whether_it_must_hold(spark: Any, world: World) -> None:
    world.order("1", "open")  # an older version of the row
    world.order("1", "paid")
    world.job("1", CANCELLED)
    assert world.classed(spark, rule=replace(RULE, when="status = 'paid'")) == {"1": "kept"}
    assert world.classed(spark, rule=replace(RULE, when="status = 'open'")) == {"1": "called_off"}
    assert world.classed(spark, rule=replace(RULE, when="false")) == {"1": "called_off"}


def test_a_delay_is_computed_only_for_rows_that_need_a_job(spark: Any, world: World) -> None:
    for number, seconds in enumerate(("1800", "draft", "NaN", "1e30", "-1e30", "Infinity")):
        world.order(str(number), seconds)
    by_row = replace(RULE, delay="double(status)", delay_seconds=0)
    assert world.classed(spark, rule=by_row) == {
        "0": "missing", "2": "no_delay", "3": "long_delay", "4": "negative_delay", "5": "long_delay"}  # fmt: skip
    assert world.classed(spark, rule=replace(by_row, zone="Europe/Rome"))["3"] == "long_delay"
    assert world.classed(spark, rule=replace(by_row, when="status = '1800'")) == {"0": "missing"}


def test_a_due_time_outside_the_years_1_to_9999_cannot_be_used(spark: Any, world: World) -> None:
    for number, micros in enumerate((2**63 - 1, -(2**63), 253_402_300_800_000_000, -62_135_596_800_000_001, 0)):
        world.order(str(number), str(micros))
    found = world.classed(spark, rule=replace(RULE, since="timestamp_micros(bigint(status))", delay_seconds=0))
    assert found == dict.fromkeys("0123", "no_due") | {"4": "missing"}


def test_the_due_time_is_that_of_the_newest_job(spark: Any, world: World) -> None:
    world.order("1")
    world.job("1", CANCELLED, due_at=NOW, ended_at=PLACED)
    world.job("1", FINISHED, ONCE)
    assert world.classed(spark, "due_at") == {"1": DUE.astimezone().replace(tzinfo=None)}


@pytest.mark.parametrize(("carry", "sorts"), [((), 0), (("status",), 1)])
def test_all_rows_of_a_key_meet_in_one_shuffle_and_are_sorted_once_at_most(
    spark: Any, world: World, carry: tuple[str, ...], sorts: int
) -> None:
    world.order("1")
    world.job("1", FINISHED, ONCE)
    keys: Any = world.keys(spark, replace(RULE, carry=carry))
    plan = keys._jdf.queryExecution().executedPlan().toString()
    nodes = (r"\bExchange ", r"\bSort \[", r"(?:Hash|Sort)Aggregate\(")
    assert [len(re.findall(node, plan)) for node in nodes] == [1, sorts, 1], plan


def test_empty_input_gives_no_classes(spark: Any, world: World) -> None:
    assert world.classed(spark) == {}


def test_jobs_without_any_row_are_orphans_and_rows_without_any_job_are_missing(spark: Any, world: World) -> None:
    world.order("1")
    assert world.classed(spark) == {"1": "missing"}
    world.orders = []
    world.job("2", DELAYED)
    assert world.classed(spark) == {"2": "orphan"}


def test_missing_jobs_have_the_columns_of_a_loads_input(spark: Any) -> None:
    rows = [
        ("order:1", 1, 0, None, DUE, None, None, None, None, None, None, {}, None, None,
         "missing"),
        ("order:2", 1, 1, 7, DUE, DUE, DUE, DUE, 0, PLACED, "ran", {}, None, None, "kept"),
    ]  # fmt: skip
    found = promises.missing_jobs(spark.createDataFrame(rows, promises.CLASSIFIED), RULE)

    assert found.schema.names == ["topic", "key", "due_at"]
    assert [(row.topic, row.key, row.due_at.timestamp()) for row in found.collect()] == [
        ("order.close", "order:1", DUE.timestamp())]  # fmt: skip


def test_an_outcome_sees_the_time_of_the_snapshot(spark: Any, world: World) -> None:
    for number, late in (("soon", 0), ("long ago", -3600)):
        world.order(number)
        world.job(number, FINISHED, (Outcome.FINISHED, late))
    asked = replace(RULE, outcome="CASE WHEN begun_at + INTERVAL 1 HOUR < as_of THEN false END")
    found = promises.classify(world.keys(spark, asked), asked, ms("02-01 13:00")).collect()
    assert {row.key: row.outcome for row in found} == {"order:soon": None, "order:long ago": False}
