"""Pages of jobs: every match once, in order, with a bounded number of rows per page."""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import product
from random import Random
from typing import Any

import pytest

from delaytasks import cancel, clock, schedule
from delaytasks.db import dialects, pagination, scans
from delaytasks.db.pagination import Cursor
from delaytasks.db.scans import DUE, KEY, NEWEST, OLDEST, JobFilter, Order, Position
from delaytasks.exceptions import BadCursor
from delaytasks.models import Job
from delaytasks.states import STORED_LIVE, State

from ..support.stage import Stage

# The mirror plays no part in the pages.
pytestmark = pytest.mark.parametrize("due_index", ["no-mirror"], indirect=True)
TOPICS = ("a.one", "a.two", "b.one")


@pytest.fixture(autouse=True)
def _topics(settings: Any, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "PAGE_SECONDS", 600)
    monkeypatch.setattr(pagination, "TOPICS_SECONDS", 600)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {name: {} for name in TOPICS}}


@pytest.fixture
def jobs(stage: Stage, db_clock: Any) -> dict[str, list[str]]:
    """Map each state to the "topic key" names of its jobs: thirty jobs, ten per topic, in five states."""
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


def job_filter(topics: Sequence[str] = TOPICS, **terms: Any) -> JobFilter:
    return JobFilter(dialects.database_now("default"), tuple(topics), **terms)


def page(cursor: str = "", limit: int = 50, topics: Sequence[str] = TOPICS, **terms: Any) -> tuple[list[str], str]:
    """Return the names of the jobs of a page by topic, and the cursor of the next page."""
    ids, following = pagination.find_by_topic("default", job_filter(topics, **terms), cursor, limit)
    return [str(job) for job in pagination.fetch(Job.objects.all(), ids)], following


def pages(limit: int = 3, **terms: Any) -> Iterator[list[str]]:
    cursor = ""
    for _ in range(200):
        names, cursor = page(cursor, limit, **terms)
        yield names
        if not cursor:
            return
    raise AssertionError("the pages never end")


def everything(**terms: Any) -> list[str]:
    return [name for names in pages(**terms) for name in names]


# Topic by topic


@pytest.mark.parametrize("limit", [1, 3, 7, 30, 100])
def test_every_job_is_listed_once_by_topic_and_key(jobs: Any, limit: int) -> None:
    assert everything(limit=limit) == [f"{topic} order:{number}" for topic in TOPICS for number in range(10)]


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("limit", [1, 2, 5, 50])
def test_each_state_is_listed_completely(jobs: dict[str, list[str]], state: State, limit: int) -> None:
    assert sorted(everything(state=state, limit=limit)) == sorted(jobs.get(state.word, []))


def test_pages_are_full_while_there_are_more_jobs(jobs: Any) -> None:
    assert [len(names) for names in pages(limit=7)] == [7, 7, 7, 7, 2]
    assert [len(names) for names in pages(limit=10)] == [10, 10, 10]


def test_live_jobs_are_ordered_by_their_due_time(stage: Stage, db_clock: Any) -> None:
    for key, delay in (("c", 5), ("a", 9), ("b", 7)):
        schedule("a.one", key=key, delay=delay)
    assert everything(state=State.DELAYED, limit=1) == ["a.one c", "a.one b", "a.one a"]


def test_only_the_requested_topics_are_listed(jobs: Any) -> None:
    assert {name.split()[0] for name in everything(topics=["a.two"])} == {"a.two"}
    assert everything(topics=[]) == []


def test_a_key_prefix_is_taken_literally(stage: Stage) -> None:
    last = "\U0010ffff"  # of all characters
    for key in ("50%", "50%x", "50x", "5", "50_", "ö", "öx", "o", f"ö{last}x", "o".ljust(255, last)):
        schedule("a.one", key=key, delay=60)
    assert sorted(everything(key_prefix="50%", limit=1)) == ["a.one 50%", "a.one 50%x"]
    assert everything(key_prefix="50_") == ["a.one 50_"]
    assert everything(key_prefix="ö", limit=1) == ["a.one ö", "a.one öx", f"a.one ö{last}x"]
    assert everything(key_prefix="o") == ["a.one o", f"a.one {'o'.ljust(255, last)}"]
    assert everything(key_prefix=f"ö{last}") == [f"a.one ö{last}x"]


def test_a_key_prefix_and_a_state_can_be_combined(jobs: dict[str, list[str]]) -> None:
    assert everything(key_prefix="order:4", state=State.CANCELLED) == [f"{topic} order:4" for topic in TOPICS]
    assert everything(key_prefix="order:4", state=State.READY) == []
    assert len(everything(key_prefix="order:", state=State.DELAYED, limit=2)) == len(jobs["delayed"])


@pytest.mark.parametrize("state", [None, State.DELAYED])
def test_a_due_range_includes_its_start_and_excludes_its_end(jobs: Any, db_clock: Any, state: State | None) -> None:
    begin = clock.from_ms(db_clock.now_ms + 101_000)
    found = everything(due_from=begin, due_until=begin + timedelta(seconds=4), state=state, limit=1)
    assert sorted(found) == sorted(f"{topic} order:{number}" for topic in TOPICS for number in (1, 3))


def test_a_page_that_reaches_its_row_limit_ends_early_and_the_next_continues(
    jobs: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagination, "ROUNDS", (2,))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 2)
    for state in (State.CANCELLED, State.RESERVED, State.DEAD):
        found = list(pages(state=state, limit=1))
        assert sorted(name for names in found for name in names) == sorted(jobs[state.word])
    assert [] in list(pages(state=State.CANCELLED, limit=1))


def test_a_page_that_takes_too_long_continues_with_no_further_topic(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "TOPICS_SECONDS", -1)
    names, following = page()
    assert names == []
    assert following


def test_jobs_that_change_between_pages_are_not_duplicated_and_hide_no_others(jobs: Any) -> None:
    first, following = page(limit=15)
    Job.objects.filter(topic="a.one").delete()
    cancel("b.one", key="order:1")
    names = first + page(following)[0]
    assert len(names) == len(set(names)) == 30


def test_keys_are_in_byte_order_regardless_of_the_collation(stage: Stage) -> None:
    keys = ["B", "a", "C", "ä", "Z", "0", "-"]
    for key in keys:
        schedule("a.one", key=key, delay=60)
    assert everything(limit=1) == [f"a.one {key}" for key in sorted(keys)]


def test_a_cursor_of_a_topic_that_is_no_longer_visible_continues_after_it(jobs: Any) -> None:
    _names, following = page(limit=2)
    rest, _end = page(following, topics=["a.two", "b.one"])
    assert {name.split()[0] for name in rest} == {"a.two", "b.one"}
    assert len(rest) == 20


def test_rows_that_leave_between_two_statements_hide_no_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "ROUNDS", (5, 5))
    for number in range(8):
        schedule("a.one", key=f"k{number}", delay=0)
    stage.take("a.one", 20)
    Job.objects.exclude(key="k6").update(state=State.DELAYED, lease_until=None)
    run, sent = pagination.run, []

    def run_and_change(*args: Any) -> Any:
        found = run(*args)
        if not sent:
            cancel("a.one", key="k0")
            cancel("a.one", key="k1")
        sent.append(args)
        return found

    monkeypatch.setattr(
        pagination, "by_index", lambda using: contextlib.nullcontext()
    )  # its transaction would undo the change
    monkeypatch.setattr(pagination, "run", run_and_change)
    assert everything(topics=["a.one"], state=State.RESERVED) == ["a.one k6"]


# All topics in one order


@pytest.fixture
def mixture(stage: Stage, db_clock: Any, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """60 jobs of three topics in all states, many due at the same time; and limits low enough to have an effect."""
    monkeypatch.setattr(pagination, "ROUNDS", (3, 6))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 1)
    monkeypatch.setattr(pagination, "SMALL_TOPIC", 25)
    random, now = Random(7), clock.from_ms(db_clock.now_ms)
    for number in range(60):
        state = random.choice([State.DELAYED] * 5 + list(STORED_LIVE) + [State.FINISHED, State.CANCELLED, State.DEAD])
        minutes = random.choice([-60, -5, -5, 0, 5, 5, 30, 600])
        is_held, is_live = state is State.RESERVED, state in STORED_LIVE
        Job.objects.create(
            topic=random.choice((*TOPICS, *TOPICS[:2])), key=f"k{random.randrange(40):02}:{number}", state=state,
            due_at=now + timedelta(minutes=-1 if is_held else minutes), ttr_ms=1, created_at=now,
            attempt=int(is_held), lease_until=now if is_held else None, ended_at=None if is_live else now,
            died_at=now if state is State.DEAD else None,
        )  # fmt: skip
    return list(Job.objects.order_by("id"))


def matches(job: Job, job_filter: JobFilter) -> bool:
    """Return whether a job matches: the reference implementation of JobFilter."""
    return (
        (job_filter.topics is None or job.topic in job_filter.topics)
        and (job_filter.state is None or job.shown_state(job_filter.now) is job_filter.state)
        and (not job_filter.live or job.ended_at is None)
        and job.key.startswith(job_filter.key_prefix)
        and (job_filter.due_from is None or job.due_at >= job_filter.due_from)
        and (job_filter.due_until is None or job.due_at < job_filter.due_until)
    )


def position(job: Job, order: Order) -> Position:
    values = {"due_at": job.due_ms, "key": job.key.encode(), "id": job.pk}
    return [values[column] for column in order.columns]


def read_all(order: Order, job_filter: JobFilter, limit: int = 4) -> list[int]:
    after: Position | None = None
    ids: list[int] = []
    for _ in range(100):
        found = pagination.find("default", order, job_filter, after, limit)
        assert len(found.ids) <= limit
        ids += found.ids
        if found.end is None:
            return ids
        after = pagination.decode(pagination.encode(order, Cursor(found.end)), order).after
    raise AssertionError("the pages never end")


ORDERS = [each for order in (DUE, KEY, OLDEST) for each in (order, order.reverse)]


@pytest.mark.parametrize("ranges", [1, 2, 50], ids=lambda ranges: f"{ranges} ranges")
def test_all_pages_together_contain_all_matches_in_order(
    mixture: list[Job], db_clock: Any, monkeypatch: pytest.MonkeyPatch, ranges: int
) -> None:
    monkeypatch.setattr(pagination, "MERGED_TOPICS", ranges)
    monkeypatch.setattr(scans, "RANGES", ranges)
    now = clock.from_ms(db_clock.now_ms)
    states: list[dict[str, Any]] = [{}, {"live": True}, *({"state": state} for state in State)]
    dues: list[dict[str, Any]] = [{}, {"due_from": now, "due_until": now + timedelta(minutes=30)}]
    for topics, state, due, prefix in product((None, TOPICS[:2], TOPICS[2:], TOPICS), states, dues, ("", "k1")):
        job_filter = JobFilter(now, topics, key_prefix=prefix, **state, **due)
        for order in ORDERS:
            if (order.name == "key" and topics is None) or (order.name == "due" and not job_filter.is_live):
                continue
            jobs = sorted(mixture, key=lambda job: position(job, order), reverse=order.descending)
            expected = [job.pk for job in jobs if matches(job, job_filter)]
            assert read_all(order, job_filter) == expected, (order, job_filter)


def test_the_first_jobs_are_found_regardless_of_the_number_of_rows_to_read(mixture: list[Job], db_clock: Any) -> None:
    job_filter = JobFilter(clock.from_ms(db_clock.now_ms), state=State.CANCELLED)
    expected = [job.pk for job in reversed(mixture) if job.state == State.CANCELLED]
    assert len(expected) > 2
    assert pagination.find_first("default", job_filter, 2) == (expected[:2], True)
    assert pagination.find_first("default", job_filter, len(expected)) == (expected, False)


@pytest.mark.parametrize(
    ("terms", "order", "by_topic"),
    [
        ({}, NEWEST, KEY),
        ({"state": State.FINISHED}, NEWEST, KEY),
        ({"state": State.DEAD}, NEWEST, OLDEST),
        ({"state": State.READY}, DUE, DUE),
        ({"live": True}, DUE, DUE),
        ({"live": True, "key_prefix": "k"}, KEY, KEY),
        ({"state": State.DEAD, "key_prefix": "k"}, KEY, KEY),
    ],
)
def test_the_filter_determines_the_order(terms: Any, order: Order, by_topic: Order, db_clock: Any) -> None:
    job_filter = JobFilter(clock.from_ms(db_clock.now_ms), **terms)
    assert (pagination.order_of(job_filter), pagination.order_of(job_filter, by_topic=True)) == (order, by_topic)


def test_a_cursor_of_a_list_with_other_filters_is_refused(jobs: Any) -> None:
    _names, following = page(limit=2)
    with pytest.raises(BadCursor, match="other filters"):
        page(following, state=State.DELAYED)
