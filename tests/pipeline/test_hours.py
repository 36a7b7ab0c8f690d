"""Which hours a report works out: all that may have changed, and no others."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from delaytasks import clock, dialect
from delaytasks.models import Job, JobEvent
from delaytasks.pipeline import hours, snapshot
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.hours import HOUR_MS, SLACK_MS, Look, Wanted
from delaytasks.states import Outcome

from .conftest import happened

NEXT = "SELECT nextval(pg_get_serial_sequence('delaytasks_jobevent', 'id'))"


class Told:
    """A snapshot that answers which hours have late events."""

    def __init__(self, *late_hours: int, vendor: str = "sqlite", xmax: int = 1) -> None:
        self.late_hours, self.xmax = late_hours, xmax
        self.database = Database(vendor, "shop")

    def ask(self, sql: str, params: list[int]) -> list[tuple[int]]:
        self.asked = params
        return [(hour,) for hour in self.late_hours]


def look(hour: float, max_id: int, *, xmin: int, xmax: int) -> Look:
    return Look(round(hour * HOUR_MS), max_id, xmin, xmax)


def test_the_first_report_works_everything_out() -> None:
    assert hours.wanted(Told(), [], 0) == Wanted(0, (), 0)


def test_an_hour_is_settled_when_whoever_could_write_in_it_has_ended() -> None:
    before = look(10.5, 100, xmin=500, xmax=520)
    assert hours.settled([before], look(12.2, 200, xmin=519, xmax=600)) == 0, "519 may still be writing"
    assert hours.settled([before], look(12.2, 200, xmin=520, xmax=600)) == 10 * HOUR_MS
    assert hours.settled([before], look(12.2, 200, xmin=600, xmax=600)) == 12 * HOUR_MS, "nobody is writing at all"


def test_an_hour_is_not_settled_in_the_first_minutes_after_it() -> None:
    just_after = Look(10 * HOUR_MS + SLACK_MS - 1, 1, xmin=7, xmax=7)
    assert hours.settled([], just_after) == 9 * HOUR_MS


def test_the_next_report_begins_with_the_first_hour_that_was_not_settled() -> None:
    looks = [look(8.5, 80, xmin=1, xmax=1), look(10.5, 100, xmin=1, xmax=1)]
    told = Told()
    assert hours.wanted(told, looks, 10 * HOUR_MS) == Wanted(10 * HOUR_MS, (), 80)
    assert told.asked == [100, 10 * HOUR_MS]


def test_an_event_that_arrives_late_has_its_hour_worked_out_again() -> None:
    looks = [look(2.5, 20, xmin=1, xmax=1), look(10.5, 100, xmin=1, xmax=1)]
    want = hours.wanted(Told(4), looks, 10 * HOUR_MS)
    assert want == Wanted(10 * HOUR_MS, (4 * HOUR_MS,), 20)
    assert [want.has(n * HOUR_MS) for n in (3, 4, 5, 10, 11)] == [False, True, False, True, True]


def test_an_event_of_the_archive_that_no_look_saw_has_its_hour_worked_out_again() -> None:
    looks = [look(2.5, 20, xmin=1, xmax=1), look(10.5, 100, xmin=1, xmax=1)]
    want = hours.wanted(Told(4), looks, 10 * HOUR_MS, [3 * HOUR_MS, 4 * HOUR_MS])
    assert want == Wanted(10 * HOUR_MS, (3 * HOUR_MS, 4 * HOUR_MS), 20)


def test_what_was_open_at_the_last_look_is_told_by_its_transaction_and_not_by_its_id() -> None:
    looks = [look(8.5, 80, xmin=1, xmax=1), look(10.5, 100, xmin=600, xmax=650)]
    told = Told(vendor="postgresql", xmax=700)
    hours.wanted(told, looks, 10 * HOUR_MS)
    assert told.asked == [80, 10 * HOUR_MS, 700, 100], "ids that were handed out when hours were not settled; from 600"
    moved = Told(vendor="postgresql", xmax=500)
    hours.wanted(moved, looks, 10 * HOUR_MS)
    assert moved.asked == [80, 10 * HOUR_MS], "a database that was moved counts its transactions anew"


@pytest.mark.only_on("postgresql")
def test_an_id_that_was_handed_out_before_a_look_to_who_began_to_write_after_it_is_found_and_nothing_else(
    database: Database, job: Callable[..., Job]
) -> None:
    def looked() -> Look:
        with snapshot.taken(database) as taken:
            return hours.look(taken)

    row, long_ago = job(), dialect.database_now("default") - timedelta(days=40)
    happened(row, Outcome.FINISHED, long_ago)
    looks = [looked()]
    with database.connect() as slow:
        (number,) = slow.execute(NEXT).fetchone()
    happened(row, Outcome.FINISHED, long_ago + timedelta(hours=1))
    looks.append(looked())
    assert looks[-1].max_id > number
    late_ms = clock.to_ms(long_ago + timedelta(hours=2))
    late = JobEvent(id=number, job=row, outcome="finished", attempt=1, due_ms=late_ms, done_ms=late_ms)
    JobEvent.objects.bulk_create([late])
    with snapshot.taken(database) as taken:
        want = hours.wanted(taken, looks, hours.settled(looks[:-1], looks[-1]))

    assert want.before == (hours.hour_of(late_ms),)


def test_all_is_read_where_no_look_is_old_enough() -> None:
    assert hours.above([look(5, 50, xmin=1, xmax=1)], 4 * HOUR_MS) == 0


@pytest.mark.parametrize("number", [0, 1, hours.MOST_LOOKS + 5])
def test_looks_are_remembered_up_to_a_bound(number: int) -> None:
    looks = [look(n, n, xmin=1, xmax=1) for n in range(number)]
    kept = hours.looks_of({"looks": hours.as_document(looks)})
    assert kept == looks[-hours.MOST_LOOKS :]
