"""The watermark: events that commit later with lower ids are never skipped."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import connection

from delaytasks.models import Job
from delaytasks.pipeline.sources import events, watermark
from delaytasks.pipeline.sources.arrow import TableSource
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.sources.watermark import NoWatermark, SettledIds, Watermark
from delaytasks.states import Outcome

from ..conftest import at, happened

pytestmark = pytest.mark.on_both  # each database is asked in SQL of its own

INSERT = """
    INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, done_ms, worker, actor, error, reason)
    VALUES (%s, 'finished', 1, 0, 0, '', '', '', '') RETURNING id"""


# The rule


def test_an_id_is_settled_when_all_possible_writers_have_ended() -> None:
    settling = SettledIds()

    assert settling.advance(10, {"3/1", "4/1"}) == 0
    assert settling.advance(12, {"4/1", "5/1"}) == 0
    assert settling.advance(15, {"5/1", "6/1"}) == 10, "who began after the look cannot have an id up to it"
    assert settling.advance(20, {"6/2"}) == 15
    assert settling.advance(20, set()) == 20
    assert settling.candidates == []


def test_a_prepared_transaction_still_blocks_under_its_new_name() -> None:
    settling = SettledIds()
    settling.advance(10, {"3/1", "-1/700"})

    assert settling.advance(11, {"-1/700", "-1/701"}) == 0
    assert settling.advance(12, {"-1/701", "4/1"}) == 0, "-1/701 may be what 3/1 was"
    assert settling.advance(12, {"4/1", "-1/702"}) == 11, "-1/702 was nobody whom an id waited for"


def test_the_number_of_candidates_is_bounded_and_settles_when_the_blocker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermark, "MAX_CANDIDATES", 3)
    settling = SettledIds()
    for last in range(1, 20):
        assert settling.advance(last, {"3/1"}) == 0

    assert [each for each, _ in settling.candidates] == [1, 2, 19]
    assert settling.advance(20, set()) == 20


# On a database


@pytest.fixture
def mark(database: Database) -> Iterator[Watermark]:
    with closing(Watermark(database)) as made:
        yield made


def test_committed_events_are_settled(mark: Watermark, job: Callable[..., Job]) -> None:
    before = mark.settled()
    ids = [happened_to(job(f"order:{n}")) for n in range(3)]

    assert mark.settled() == ids[-1] > before
    assert mark.newest(before, 2, ids[-1]) == ids[1]
    assert mark.newest(ids[-1], 2, ids[-1] + 5) == ids[-1], "never an id that no event has"


def happened_to(row: Job) -> int:
    happened(row, Outcome.SNOOZED, at("02-01 12:00"))
    return int(row.events.order_by("-id").values_list("id", flat=True)[0])


@pytest.mark.only_on("postgresql")
def test_an_event_that_commits_after_later_ones_is_read_when_it_commits(
    database: Database, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "WAIT_SECONDS", 0)
    row = job()
    with closing(Watermark(database)) as probe:
        after = probe.settled()
    reader = TableSource({**database.as_options(), "relation": "events", "after": str(after), "most": "100"})
    source: Any = reader.streamReader(reader.schema())
    found: list[int] = []

    def read() -> None:
        start = {"to": found[-1] if found else after}
        end = source.latestOffset(start, source.getDefaultReadLimit())
        for each in source.partitions(start, end):
            found.extend(id for batch in source.read(each) for id in sorted(batch.column("id").to_pylist()))

    with closing(source.watermark), database.connect() as first, database.connect() as second:
        ids = [first.execute(INSERT, [row.pk]).fetchone()[0]]
        with first.transaction():  # a subtransaction
            ids.append(first.execute(INSERT, [row.pk]).fetchone()[0])
        ids.append(second.execute(INSERT, [row.pk]).fetchone()[0])
        ids.append(happened_to(row))  # this one is committed
        read()
        second.rollback()
        read()
        assert found == []
        first.commit()
        read()
        read()

    del ids[2]
    assert found == ids


@pytest.mark.only_on("postgresql")
def test_a_sequence_with_a_cache_is_refused(database: Database, mark: Watermark) -> None:
    sequence = "delaytasks_jobevent_id_seq"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SEQUENCE {sequence} CACHE 20")
        try:
            with pytest.raises(NoWatermark, match=f"ALTER SEQUENCE {sequence} CACHE 1"):
                mark.settled()
        finally:
            cursor.execute(f"ALTER SEQUENCE {sequence} CACHE 1")


def test_a_sequence_that_was_reset_is_refused(mark: Watermark, job: Callable[..., Job]) -> None:
    last = happened_to(job())

    assert mark.settled(above=last) == last
    with pytest.raises(NoWatermark, match=r"the last id in .* stream\.json"):
        mark.settled(above=last + 1)
