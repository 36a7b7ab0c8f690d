"""Event counts of the last hour: read from the newest event backwards, and cached."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from delaytasks.clock import from_ms
from delaytasks.db import transitions
from delaytasks.db.transitions import Event
from delaytasks.models import Job, JobEvent
from delaytasks.monitoring import cache as stats_cache
from delaytasks.monitoring import event_counts
from delaytasks.monitoring import last_hour as last_hour_module
from delaytasks.monitoring.last_hour import EventCounts, last_hour, total
from delaytasks.states import Outcome, State

NOW_MS = 1_893_456_000_000 + 20_500
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


@pytest.fixture(autouse=True)
def _fresh_counts(transactional_db: None, db_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays fresh, and the time limit is never reached."""
    db_clock.set(NOW_MS)
    monkeypatch.setattr(last_hour_module, "FRESH_SECONDS", 0)
    monkeypatch.setattr(stats_cache, "FRESH_PER_COMPUTE_SECOND", 0)
    monkeypatch.setattr(last_hour_module, "SECONDS", 600)


@pytest.fixture
def job() -> Job:
    return make_job("parcel.return")


def make_job(topic: str) -> Job:
    when = from_ms(NOW_MS)
    return Job.objects.create(
        topic=topic, key=topic, state=State.FINISHED, due_at=when, ttr_ms=1, created_at=when, ended_at=when
    )


def event_of(
    job: Job, outcome: Outcome = Outcome.FINISHED, *, ago_ms: int = 0, late_ms: int | None = 5, attempt: int = 1,
    now_ms: int = NOW_MS,
) -> Event:  # fmt: skip
    done_ms = now_ms - ago_ms
    reserved_ms = None if late_ms is None else done_ms - 20
    return Event(job.pk, outcome, attempt, done_ms - 20 - (late_ms or 0), done_ms, reserved_ms)


def record(*events: Event) -> None:
    transitions.record("default", events)


def test_events_are_counted_by_topic_and_outcome(job):
    other = make_job("mail.send")
    record(
        event_of(job, ago_ms=30 * MINUTE),
        event_of(job, ago_ms=10 * MINUTE),
        event_of(job, Outcome.DEAD, ago_ms=2 * MINUTE),
        event_of(other, Outcome.CANCELLED, late_ms=None),
    )
    hour = last_hour("default")
    assert hour.complete
    assert {topic: dict(tally.outcomes) for topic, tally in hour.topics(None).items()} == {
        "parcel.return": {"finished": 2, "dead": 1}, "mail.send": {"cancelled": 1},
    }  # fmt: skip
    assert list(hour.topics(["mail.send"])) == ["mail.send"]


def test_events_are_counted_by_minute(job):
    record(event_of(job, ago_ms=10 * MINUTE), event_of(job, ago_ms=MINUTE), event_of(job), event_of(job))
    series = [tally.outcomes[Outcome.FINISHED] for _minute, tally in last_hour("default").series(None)]
    assert len(series) == 60
    assert (series[-1], series[-2], series[-11]) == (2, 1, 1)
    assert sum(series) == 4
    assert sum(tally.outcomes.total() for _minute, tally in last_hour("default").series([])) == 0


def test_events_older_than_an_hour_are_left_out(job):
    record(event_of(job, ago_ms=3 * HOUR), event_of(job, ago_ms=HOUR + SECOND), event_of(job, ago_ms=5 * MINUTE))
    assert total(last_hour("default").topics(None).values()).outcomes.total() == 1


def test_without_events_the_hour_is_complete_and_empty():
    hour = last_hour("default")
    assert (hour.complete, hour.topics(None), len(hour.series(None))) == (True, {}, 60)


def test_an_event_whose_job_is_gone_belongs_to_no_topic(job):
    record(event_of(job), event_of(job, ago_ms=SECOND))
    Job.objects.all().delete()
    assert last_hour("default").topics(None) == {}


# -- lateness -----------------------------------------------------------------------------------


def test_lateness_is_given_as_percentiles_and_maximum(job):
    record(*(event_of(job, late_ms=ms) for ms in [*range(1, 99), 1234, 987_654]))
    tally = last_hour("default").topics(None)["parcel.return"]
    assert (tally.late_ms(0.5), tally.late_ms(0.99), tally.late_ms(1)) == (50, 1200, 980_000)
    assert tally.worst_ms == 987_654


@pytest.mark.parametrize(
    ("late_ms", "rounded"), [(0, 0), (9, 9), (99, 99), (105, 100), (999, 990), (86_399_999, 86_000_000)]
)
def test_lateness_is_counted_to_two_digits(job, late_ms, rounded):
    record(event_of(job, late_ms=late_ms))
    assert last_hour("default").topics(None)["parcel.return"].late_ms(0.5) == rounded


def test_a_later_attempt_does_not_count_as_late(job):
    """It may have waited for the lease of the attempt before it to end."""
    record(event_of(job, Outcome.FINISHED, attempt=2, late_ms=HOUR), event_of(job, late_ms=7))
    tally = last_hour("default").topics(None)["parcel.return"]
    assert (tally.late_ms(1), tally.worst_ms, tally.outcomes["finished"]) == (7, 7, 2)


def test_without_a_first_attempt_there_is_no_lateness(job):
    record(event_of(job, Outcome.CANCELLED, late_ms=None))
    tally = last_hour("default").topics(None)["parcel.return"]
    assert (tally.late_ms(0.5), tally.worst_ms) == (None, None)
    assert EventCounts().late_ms(0.99) is None


# -- reading and caching --------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of events that each statement read."""
    counts: list[int] = []
    newest_events = event_counts.newest_events

    def counting(*args: Any) -> Any:
        groups, unread_up_to = newest_events(*args)
        counts.append(sum(group.total for group in groups))
        return groups, unread_up_to

    monkeypatch.setattr(event_counts, "newest_events", counting)
    return counts


def test_events_older_than_a_minute_are_read_once(job, read):
    record(*(event_of(job, ago_ms=ms) for ms in range(50 * MINUTE, 2 * MINUTE, -MINUTE)))
    record(event_of(job, ago_ms=SECOND))
    first = last_hour("default")
    assert sum(read) == 49
    read.clear()
    assert last_hour("default").topics(None)["parcel.return"].outcomes == first.topics(None)["parcel.return"].outcomes
    assert sum(read) == 1  # only the last minute, to which events may still be committed


def test_an_event_that_is_committed_late_is_counted(job):
    record(event_of(job, ago_ms=SECOND))
    last_hour("default")
    record(event_of(job, ago_ms=30 * SECOND))
    assert last_hour("default").topics(None)["parcel.return"].outcomes["finished"] == 2


def test_at_the_time_limit_only_the_newest_events_are_counted(job, monkeypatch):
    record(*(event_of(job, ago_ms=ms) for ms in range(50 * MINUTE, 0, -MINUTE)))
    monkeypatch.setattr(last_hour_module, "CHUNKS", (10,))
    allow(monkeypatch, chunks=0)
    hour = last_hour("default")
    assert not hour.complete
    assert 1 <= hour.minutes_counted < 15


def allow(monkeypatch: pytest.MonkeyPatch, *, chunks: int) -> None:
    """Set the clock so that `chunks` chunks are read before the deadline, besides the two that are always read."""
    left = iter([0.0] * (1 + chunks))  # read at the start and before each chunk
    monkeypatch.setattr(last_hour_module, "time", SimpleNamespace(monotonic=lambda: next(left, 1e9)))


def test_repeated_short_reads_are_always_right_and_cover_the_hour_in_the_end(job, monkeypatch, db_clock):
    chance = random.Random(7)
    monkeypatch.setattr(last_hour_module, "CHUNKS", (20, 7))
    now_ms = NOW_MS
    record(*(event_of(job, ago_ms=ms, late_ms=ms % 300) for ms in range(2 * HOUR, 0, -17 * SECOND)))
    for _ in range(80):
        now_ms += chance.randrange(20 * SECOND)
        db_clock.set(now_ms)
        record(*(event_of(job, late_ms=chance.randrange(2000), now_ms=now_ms) for _ in range(chance.randrange(4))))
        allow(monkeypatch, chunks=chance.randrange(4))
        hour = last_hour("default")
        assert per_minute(hour) == counted_by_hand(hour)
    assert hour.complete


def test_counts_are_right_after_a_long_time_without_calls(job, db_clock):
    record(*(event_of(job, ago_ms=ms) for ms in range(50 * MINUTE, 0, -MINUTE)))
    last_hour("default")
    for later_ms in (HOUR // 2, 2 * HOUR):
        now_ms = NOW_MS + later_ms
        db_clock.set(now_ms)
        record(*(event_of(job, ago_ms=ms, now_ms=now_ms) for ms in range(20 * MINUTE, 0, -MINUTE)))
        hour = last_hour("default")
        assert hour.complete
        assert per_minute(hour) == counted_by_hand(hour)


def per_minute(hour: last_hour_module.LastHour) -> dict[int, tuple[Counter[str], int | None]]:
    return {minute: (tally.outcomes, tally.worst_ms) for minute, tally in hour.series(None) if tally.outcomes}


def counted_by_hand(hour: last_hour_module.LastHour) -> dict[int, tuple[Counter[str], int | None]]:
    """Return the same by reading every event."""
    minutes: dict[int, list[JobEvent]] = {}
    for event in JobEvent.objects.filter(done_ms__gte=hour.since_ms):
        minutes.setdefault(event.done_ms // MINUTE, []).append(event)
    return {
        minute: (Counter(e.outcome for e in events), max(e.late_ms for e in events if e.late_ms is not None))
        for minute, events in minutes.items()
    }


# -- the first event of a moment ------------------------------------------------------------------


def test_the_first_event_of_a_moment_is_found_although_ids_are_missing(job):
    chance = random.Random(3)
    moments = sorted(chance.randrange(10_000) for _ in range(300))
    record(*(event_of(job, now_ms=ms) for ms in moments))
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM delaytasks_jobevent WHERE id % 3 = 0 OR id % 7 < 3")
    known = sorted(JobEvent.objects.values_list("id", "done_ms"))
    after = known[-1][0] + 1
    for wanted in (0, 1, 500, 5_000, 9_999, 20_000, *(ms for _, ms in known[::20])):
        expected = next((pk for pk, ms in known if ms >= wanted), after)
        first, end = event_counts.first_events("default", [wanted])
        assert end == after
        assert not [pk for pk, _ in known if first <= pk < expected or expected <= pk < first]
