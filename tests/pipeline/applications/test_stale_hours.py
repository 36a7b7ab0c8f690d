"""A report recomputes exactly the hours that may have changed."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from delaytasks import clock
from delaytasks.db import dialects
from delaytasks.models import Job, JobEvent
from delaytasks.pipeline.applications import stale_hours
from delaytasks.pipeline.applications.stale_hours import HOUR_MS, MARGIN_MS, ReportSnapshot, StaleHours
from delaytasks.pipeline.sources import snapshot
from delaytasks.pipeline.sources.database import Database
from delaytasks.states import Outcome

from ..conftest import happened

NEXT = "SELECT nextval(pg_get_serial_sequence('delaytasks_jobevent', 'id'))"


class FakeSnapshot:
    """A snapshot with the given hours of late events."""

    def __init__(self, *late_hours: int, vendor: str = "sqlite", xmax: int = 1) -> None:
        self.late_hours, self.xmax = late_hours, xmax
        self.database = Database(vendor, "shop")

    def query(self, sql: str, params: list[int]) -> list[tuple[int]]:
        self.params = params
        return [(hour,) for hour in self.late_hours]


def report_at(hour: float, max_id: int, *, xmin: int, xmax: int) -> ReportSnapshot:
    return ReportSnapshot(round(hour * HOUR_MS), max_id, xmin, xmax)


def test_the_first_report_computes_all_hours() -> None:
    assert stale_hours.find_stale_hours(FakeSnapshot(), [], 0) == StaleHours(0, (), 0)


def test_an_hour_is_settled_when_all_its_possible_writers_have_ended() -> None:
    earlier_hours = report_at(10.5, 100, xmin=500, xmax=520)
    assert stale_hours.settled_before([earlier_hours], report_at(12.2, 200, xmin=519, xmax=600)) == 0, (
        "519 may still be writing"
    )
    assert stale_hours.settled_before([earlier_hours], report_at(12.2, 200, xmin=520, xmax=600)) == 10 * HOUR_MS
    assert stale_hours.settled_before([earlier_hours], report_at(12.2, 200, xmin=600, xmax=600)) == 12 * HOUR_MS, (
        "no transaction is writing"
    )


def test_an_hour_is_not_settled_in_the_first_minutes_after_it() -> None:
    just_after = ReportSnapshot(10 * HOUR_MS + MARGIN_MS - 1, 1, xmin=7, xmax=7)
    assert stale_hours.settled_before([], just_after) == 9 * HOUR_MS


def test_the_next_report_starts_at_the_first_unsettled_hour() -> None:
    earlier = [report_at(8.5, 80, xmin=1, xmax=1), report_at(10.5, 100, xmin=1, xmax=1)]
    fake = FakeSnapshot()
    assert stale_hours.find_stale_hours(fake, earlier, 10 * HOUR_MS) == StaleHours(10 * HOUR_MS, (), 80)
    assert fake.params == [100, 10 * HOUR_MS]


def test_the_hour_of_a_late_event_is_recomputed() -> None:
    earlier = [report_at(2.5, 20, xmin=1, xmax=1), report_at(10.5, 100, xmin=1, xmax=1)]
    stale = stale_hours.find_stale_hours(FakeSnapshot(4), earlier, 10 * HOUR_MS)
    assert stale == StaleHours(10 * HOUR_MS, (4 * HOUR_MS,), 20)


def test_the_hour_of_an_unseen_archived_event_is_recomputed() -> None:
    earlier = [report_at(2.5, 20, xmin=1, xmax=1), report_at(10.5, 100, xmin=1, xmax=1)]
    stale = stale_hours.find_stale_hours(FakeSnapshot(4), earlier, 10 * HOUR_MS, [3 * HOUR_MS, 4 * HOUR_MS])
    assert stale == StaleHours(10 * HOUR_MS, (3 * HOUR_MS, 4 * HOUR_MS), 20)


def test_rows_of_transactions_open_at_the_last_report_are_found_by_transaction_id() -> None:
    earlier = [report_at(8.5, 80, xmin=1, xmax=1), report_at(10.5, 100, xmin=600, xmax=650)]
    fake = FakeSnapshot(vendor="postgresql", xmax=700)
    stale_hours.find_stale_hours(fake, earlier, 10 * HOUR_MS)
    assert fake.params == [80, 10 * HOUR_MS, 700, 100], "ids that were handed out when hours were not settled; from 600"
    moved = FakeSnapshot(vendor="postgresql", xmax=500)
    stale_hours.find_stale_hours(moved, earlier, 10 * HOUR_MS)
    assert moved.params == [80, 10 * HOUR_MS], "a database that was moved counts its transactions anew"


@pytest.mark.only_on("postgresql")
def test_an_id_assigned_before_a_report_and_written_after_it_is_found(
    database: Database, job: Callable[..., Job]
) -> None:
    def observed() -> ReportSnapshot:
        with snapshot.take(database) as taken:
            return stale_hours.observe(taken)

    row, long_ago = job(), dialects.database_now("default") - timedelta(days=40)
    happened(row, Outcome.FINISHED, long_ago)
    earlier = [observed()]
    with database.connect() as slow:
        (number,) = slow.execute(NEXT).fetchone()
    happened(row, Outcome.FINISHED, long_ago + timedelta(hours=1))
    earlier.append(observed())
    assert earlier[-1].max_id > number
    late_ms = clock.to_ms(long_ago + timedelta(hours=2))
    late = JobEvent(id=number, job=row, outcome="finished", attempt=1, due_ms=late_ms, done_ms=late_ms)
    JobEvent.objects.bulk_create([late])
    with snapshot.take(database) as taken:
        stale = stale_hours.find_stale_hours(taken, earlier, stale_hours.settled_before(earlier[:-1], earlier[-1]))

    assert stale.earlier_hours == (stale_hours.hour_of(late_ms),)


def test_all_events_are_read_if_no_earlier_report_is_old_enough() -> None:
    assert stale_hours.id_before([report_at(5, 50, xmin=1, xmax=1)], 4 * HOUR_MS) == 0


@pytest.mark.parametrize("number", [0, 1, stale_hours.MAX_SNAPSHOTS + 5])
def test_the_number_of_remembered_reports_is_bounded(number: int) -> None:
    earlier = [report_at(n, n, xmin=1, xmax=1) for n in range(number)]
    kept = stale_hours.from_document({"looks": stale_hours.to_document(earlier)})
    assert kept == earlier[-stale_hours.MAX_SNAPSHOTS :]
