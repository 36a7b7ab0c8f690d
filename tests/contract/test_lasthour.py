"""What happened in the last hour: counted from the newest event backwards, and remembered."""

import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection

from delaytasks import events, keeping, lasthour, statements
from delaytasks.clock import from_ms
from delaytasks.lasthour import Tally, last_hour, total
from delaytasks.models import Job, JobEvent
from delaytasks.statements import Event
from delaytasks.states import Outcome, State

NOW_MS = 1_893_456_000_000 + 20_500
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


@pytest.fixture(autouse=True)
def _looks(db_clock: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each look is a fresh one, and may read whatever there is."""
    db_clock.set(NOW_MS)
    cache.clear()
    monkeypatch.setattr(lasthour, "FRESH_SECONDS", 0)
    monkeypatch.setattr(keeping, "WORTH", 0)
    monkeypatch.setattr(lasthour, "SECONDS", 600)
    yield
    cache.clear()


@pytest.fixture
def job() -> Job:
    return make_job("parcel.return")


def make_job(topic: str) -> Job:
    when = from_ms(NOW_MS)
    return Job.objects.create(
        topic=topic, key=topic, state=State.FINISHED, due_at=when, ttr_ms=1, created_at=when, ended_at=when
    )


def happened(
    job: Job, outcome: Outcome = Outcome.FINISHED, *, ago_ms: int = 0, late_ms: int | None = 5, attempt: int = 1,
    now_ms: int = NOW_MS,
) -> Event:  # fmt: skip
    done_ms = now_ms - ago_ms
    reserved_ms = None if late_ms is None else done_ms - 20
    return Event(job.pk, outcome, attempt, done_ms - 20 - (late_ms or 0), done_ms, reserved_ms)


def record(*happenings: Event) -> None:
    statements.record("default", happenings)


def test_what_happened_is_counted_by_topic_and_outcome(job):
    other = make_job("mail.send")
    record(
        happened(job, ago_ms=30 * MINUTE),
        happened(job, ago_ms=10 * MINUTE),
        happened(job, Outcome.DEAD, ago_ms=2 * MINUTE),
        happened(other, Outcome.CANCELLED, late_ms=None),
    )
    found = last_hour("default")
    assert found.whole
    assert {topic: dict(tally.outcomes) for topic, tally in found.topics(None).items()} == {
        "parcel.return": {"finished": 2, "dead": 1}, "mail.send": {"cancelled": 1},
    }  # fmt: skip
    assert list(found.topics(["mail.send"])) == ["mail.send"]


def test_and_by_minute(job):
    record(happened(job, ago_ms=10 * MINUTE), happened(job, ago_ms=MINUTE), happened(job), happened(job))
    series = [tally.outcomes[Outcome.FINISHED] for _minute, tally in last_hour("default").series(None)]
    assert len(series) == 60
    assert (series[-1], series[-2], series[-11]) == (2, 1, 1)
    assert sum(series) == 4
    assert sum(tally.outcomes.total() for _minute, tally in last_hour("default").series([])) == 0


def test_what_happened_before_is_left_out(job):
    record(happened(job, ago_ms=3 * HOUR), happened(job, ago_ms=HOUR + SECOND), happened(job, ago_ms=5 * MINUTE))
    assert total(last_hour("default").topics(None).values()).outcomes.total() == 1


def test_nothing_ever_happened():
    found = last_hour("default")
    assert (found.whole, found.topics(None), len(found.series(None))) == (True, {}, 60)


def test_an_event_whose_job_is_gone_belongs_to_no_topic(job):
    record(happened(job), happened(job, ago_ms=SECOND))
    Job.objects.all().delete()
    assert last_hour("default").topics(None) == {}


# -- how late -----------------------------------------------------------------------------------


def test_lateness_is_told_as_percentiles_and_the_worst(job):
    record(*(happened(job, late_ms=ms) for ms in [*range(1, 99), 1234, 987_654]))
    tally = last_hour("default").topics(None)["parcel.return"]
    assert (tally.late_ms(0.5), tally.late_ms(0.99), tally.late_ms(1)) == (50, 1200, 980_000)
    assert tally.worst_ms == 987_654


@pytest.mark.parametrize(
    ("late_ms", "about"), [(0, 0), (9, 9), (99, 99), (105, 100), (999, 990), (86_399_999, 86_000_000)]
)
def test_lateness_is_counted_to_two_digits(job, late_ms, about):
    record(happened(job, late_ms=late_ms))
    assert last_hour("default").topics(None)["parcel.return"].late_ms(0.5) == about


def test_a_later_attempt_says_nothing_of_how_late_jobs_are_begun(job):
    """It may have waited until the lease of the one before it was over."""
    record(happened(job, Outcome.FINISHED, attempt=2, late_ms=HOUR), happened(job, late_ms=7))
    tally = last_hour("default").topics(None)["parcel.return"]
    assert (tally.late_ms(1), tally.worst_ms, tally.outcomes["finished"]) == (7, 7, 2)


def test_without_a_first_attempt_nothing_is_late(job):
    record(happened(job, Outcome.CANCELLED, late_ms=None))
    tally = last_hour("default").topics(None)["parcel.return"]
    assert (tally.late_ms(0.5), tally.worst_ms) == (None, None)
    assert Tally().late_ms(0.99) is None


# -- what is read and what is remembered --------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each statement read."""
    counts: list[int] = []
    ask = events.happened

    def asked(*args: Any) -> Any:
        found, rest = ask(*args)
        counts.append(sum(event.number for event in found))
        return found, rest

    monkeypatch.setattr(events, "happened", asked)
    return counts


def test_what_is_older_than_a_minute_is_read_once(job, read):
    record(*(happened(job, ago_ms=ms) for ms in range(50 * MINUTE, 2 * MINUTE, -MINUTE)))
    record(happened(job, ago_ms=SECOND))
    first = last_hour("default")
    assert sum(read) == 49
    read.clear()
    assert last_hour("default").topics(None)["parcel.return"].outcomes == first.topics(None)["parcel.return"].outcomes
    assert sum(read) == 1  # the last minute: what commits late still belongs to it


def test_what_was_committed_late_is_counted_too(job):
    record(happened(job, ago_ms=SECOND))
    last_hour("default")
    record(happened(job, ago_ms=30 * SECOND))
    assert last_hour("default").topics(None)["parcel.return"].outcomes["finished"] == 2


def test_when_there_is_no_time_the_newest_are_counted_and_it_says_of_how_much(job, monkeypatch):
    record(*(happened(job, ago_ms=ms) for ms in range(50 * MINUTE, 0, -MINUTE)))
    monkeypatch.setattr(lasthour, "PARTS", (10,))
    allow(monkeypatch, parts=0)
    found = last_hour("default")
    assert not found.whole
    assert 1 <= found.minutes_known < 15


def allow(monkeypatch: pytest.MonkeyPatch, *, parts: int) -> None:
    """Let there be time for so many parts, beside the two of the newest that are always read."""
    left = iter([0.0] * (1 + parts))  # asked when it begins, and before each part
    monkeypatch.setattr(lasthour, "time", SimpleNamespace(monotonic=lambda: next(left, 1e9)))


def test_looks_that_have_no_time_know_the_whole_hour_after_some_time(job, monkeypatch, db_clock):
    """Whatever is read when, and however little: what is known is right, and in the end it is the whole hour."""
    chance = random.Random(7)
    monkeypatch.setattr(lasthour, "PARTS", (20, 7))
    now_ms = NOW_MS
    record(*(happened(job, ago_ms=ms, late_ms=ms % 300) for ms in range(2 * HOUR, 0, -17 * SECOND)))
    for _ in range(80):
        now_ms += chance.randrange(20 * SECOND)
        db_clock.set(now_ms)
        record(*(happened(job, late_ms=chance.randrange(2000), now_ms=now_ms) for _ in range(chance.randrange(4))))
        allow(monkeypatch, parts=chance.randrange(4))
        found = last_hour("default")
        assert per_minute(found) == by_hand(found)
    assert found.whole


def test_after_an_hour_in_which_nobody_looked_it_is_right_again(job, db_clock):
    record(*(happened(job, ago_ms=ms) for ms in range(50 * MINUTE, 0, -MINUTE)))
    last_hour("default")
    for later_ms in (HOUR // 2, 2 * HOUR):
        now_ms = NOW_MS + later_ms
        db_clock.set(now_ms)
        record(*(happened(job, ago_ms=ms, now_ms=now_ms) for ms in range(20 * MINUTE, 0, -MINUTE)))
        found = last_hour("default")
        assert found.whole
        assert per_minute(found) == by_hand(found)


def per_minute(found: lasthour.LastHour) -> dict[int, tuple[Counter[str], int | None]]:
    return {minute: (tally.outcomes, tally.worst_ms) for minute, tally in found.series(None) if tally.outcomes}


def by_hand(found: lasthour.LastHour) -> dict[int, tuple[Counter[str], int | None]]:
    """The same, by reading every event."""
    minutes: dict[int, list[JobEvent]] = {}
    for event in JobEvent.objects.filter(done_ms__gte=found.since_ms):
        minutes.setdefault(event.done_ms // MINUTE, []).append(event)
    return {
        minute: (Counter(e.outcome for e in found), max(e.late_ms for e in found if e.late_ms is not None))
        for minute, found in minutes.items()
    }


# -- the first event of a time ------------------------------------------------------------------


def test_the_first_event_of_a_time_is_found_whatever_ids_are_missing(job):
    chance = random.Random(3)
    moments = sorted(chance.randrange(10_000) for _ in range(300))
    record(*(happened(job, now_ms=ms) for ms in moments))
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM delaytasks_jobevent WHERE id % 3 = 0 OR id % 7 < 3")
    known = sorted(JobEvent.objects.values_list("id", "done_ms"))
    after = known[-1][0] + 1
    for wanted in (0, 1, 500, 5_000, 9_999, 20_000, *(ms for _, ms in known[::20])):
        expected = next((pk for pk, ms in known if ms >= wanted), after)
        found, end = events.first_events("default", [wanted])
        assert end == after
        assert not [pk for pk, _ in known if found <= pk < expected or expected <= pk < found]
