"""Pages of jobs: everything once, in order, whatever is filtered, and no page that costs too much."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from delaytasks import cancel, clock, listing, schedule
from delaytasks.exceptions import BadCursor
from delaytasks.models import Job
from delaytasks.states import State

from .conftest import Stage

TOPICS = ("a.one", "a.two", "b.one")


@pytest.fixture(autouse=True)
def _topics(settings: Any, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE_SECONDS", 600)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {name: {} for name in TOPICS}}


@pytest.fixture
def jobs(stage: Stage, db_clock: Any) -> dict[str, list[str]]:
    """State → "topic key" of thirty jobs, ten in each topic, in five states."""
    for topic in TOPICS:
        for number in (0, 2):
            schedule(topic, key=f"order:{number}", delay=0)
        stage.take(topic, count=2)
        for number in (1, 3, 4, 5, 6, 7, 8, 9):
            schedule(topic, key=f"order:{number}", delay=100 + number if number % 2 else 0)
        cancel(topic, key="order:4")
        Job.objects.filter(topic=topic, key="order:6").update(
            state=State.DEAD, ended_at=clock.from_ms(db_clock.now_ms), died_at=clock.from_ms(db_clock.now_ms)
        )
    found: dict[str, list[str]] = {}
    for job in Job.objects.all():
        found.setdefault(job.shown_state(clock.from_ms(db_clock.now_ms)).word, []).append(str(job))
    assert sorted(found) == ["cancelled", "dead", "delayed", "ready", "reserved"]
    return found


def pages(limit: int = 3, topics: Any = TOPICS, **wish: Any) -> Iterator[list[str]]:
    cursor, rounds = "", 0
    while True:
        found = listing.page("default", topics, cursor=cursor, limit=limit, **wish)
        yield [str(job) for job in found.jobs]
        cursor, rounds = found.next, rounds + 1
        if not cursor:
            return
        assert rounds < 200, "the pages never end"


def everything(**wish: Any) -> list[str]:
    return [name for page in pages(**wish) for name in page]


@pytest.mark.parametrize("limit", [1, 3, 7, 30, 100])
def test_every_job_is_listed_once_by_topic_and_key(jobs: Any, limit: int) -> None:
    assert everything(limit=limit) == [f"{topic} order:{number}" for topic in TOPICS for number in range(10)]


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("limit", [1, 2, 5, 50])
def test_each_state_is_listed_whole(jobs: dict[str, list[str]], state: State, limit: int) -> None:
    assert sorted(everything(state=state, limit=limit)) == sorted(jobs.get(state.word, []))


def test_pages_are_as_long_as_asked_while_there_is_more(jobs: Any) -> None:
    assert [len(page) for page in pages(limit=7)] == [7, 7, 7, 7, 2]
    assert [len(page) for page in pages(limit=10)] == [10, 10, 10]


def test_live_jobs_are_ordered_by_their_due_time(stage: Stage, db_clock: Any) -> None:
    for key, delay in (("c", 5), ("a", 9), ("b", 7)):
        schedule("a.one", key=key, delay=delay)
    assert everything(state=State.DELAYED, limit=1) == ["a.one c", "a.one b", "a.one a"]


def test_only_the_topics_that_are_asked_for(jobs: Any) -> None:
    assert {name.split()[0] for name in everything(topics=["a.two"])} == {"a.two"}
    assert everything(topics=[]) == []


def test_a_key_prefix_is_taken_literally(stage: Stage) -> None:
    for key in ("50%", "50%x", "50x", "5", "50_", "ö", "öx", "o"):
        schedule("a.one", key=key, delay=60)
    assert sorted(everything(key_prefix="50%", limit=1)) == ["a.one 50%", "a.one 50%x"]
    assert everything(key_prefix="50_") == ["a.one 50_"]
    assert everything(key_prefix="ö", limit=1) == ["a.one ö", "a.one öx"]


def test_a_key_prefix_and_a_state_together(jobs: dict[str, list[str]]) -> None:
    assert everything(key_prefix="order:4", state=State.CANCELLED) == [f"{topic} order:4" for topic in TOPICS]
    assert everything(key_prefix="order:4", state=State.READY) == []
    assert len(everything(key_prefix="order:", state=State.DELAYED, limit=2)) == len(jobs["delayed"])


@pytest.mark.parametrize("state", [None, State.DELAYED])
def test_a_due_range_begins_with_its_first_moment_and_ends_before_its_last(
    jobs: Any, db_clock: Any, state: State | None
) -> None:
    begin = clock.from_ms(db_clock.now_ms + 101_000)
    found = everything(due_from=begin, due_until=begin + timedelta(seconds=4), state=state, limit=1)
    assert sorted(found) == sorted(f"{topic} order:{number}" for topic in TOPICS for number in (1, 3))


def test_a_page_that_examines_too_much_ends_early_and_the_next_goes_on(
    jobs: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "EXAMINED", 2)
    for state in (State.CANCELLED, State.RESERVED, State.DEAD):
        found = list(pages(state=state, limit=5))
        assert sorted(name for page in found for name in page) == sorted(jobs[state.word])
    assert [] in list(pages(state=State.CANCELLED, limit=5))


def test_a_page_that_takes_too_long_goes_on_to_no_further_topic(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE_SECONDS", -1)
    found = listing.page("default", TOPICS, limit=50)
    assert found.jobs == []
    assert found.next


def test_jobs_that_change_meanwhile_are_neither_doubled_nor_make_others_missed(jobs: Any) -> None:
    first = listing.page("default", TOPICS, limit=15)
    Job.objects.filter(topic="a.one").delete()
    cancel("b.one", key="order:1")
    rest = listing.page("default", TOPICS, limit=50, cursor=first.next)
    names = [str(job) for job in (*first.jobs, *rest.jobs)]
    assert len(names) == len(set(names)) == 30


def test_the_keys_of_a_page_are_bytes_in_order_whatever_the_collation(stage: Stage) -> None:
    keys = ["B", "a", "C", "ä", "Z", "0", "-"]
    for key in keys:
        schedule("a.one", key=key, delay=60)
    assert everything(limit=1) == [f"a.one {key}" for key in sorted(keys)]


@pytest.mark.parametrize(
    "cursor",
    ["x", "e30", "W10", "WzFd", "bnVsbA", "ÄÖ", "WyJrZXkiXQ", "WyJrZXkiLCJhLm9uZSIsMSwxXQ", "WyJrZXkiLDEsIngiLDFd",
     "=" * 9, "WyJrZXkiLCJhLm9uZSIsIlx1MDAwMCIsMV0", "WyJrZXkiLCJhLm9uZSIsIngiLDFlOV0", "W1tbW1tbW1tbW1tb" * 500],
)  # fmt: skip
def test_a_cursor_that_no_page_gave_is_refused(jobs: Any, cursor: str) -> None:
    with pytest.raises(BadCursor):
        listing.page("default", TOPICS, cursor=cursor)


def test_a_cursor_of_a_list_with_other_filters_is_refused(jobs: Any) -> None:
    found = listing.page("default", TOPICS, limit=2)
    with pytest.raises(BadCursor, match="other filters"):
        listing.page("default", TOPICS, cursor=found.next, state=State.DELAYED)


def test_a_cursor_of_a_topic_that_may_no_longer_be_seen_goes_on_behind_it(jobs: Any) -> None:
    found = listing.page("default", TOPICS, limit=2)
    rest = listing.page("default", ["a.two", "b.one"], limit=50, cursor=found.next)
    assert {job.topic for job in rest.jobs} == {"a.two", "b.one"}
    assert len(rest.jobs) == 20
