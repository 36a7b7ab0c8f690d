"""One clock for Django, the database's statements and the engine."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import freezegun
import pytest
import time_machine
from django.db import connection, models
from django.db.models import Count, F
from django.db.models.functions import Now
from django.template import Context, Template
from django.test.utils import isolate_apps
from django.utils import timezone

from delaytasks import databases, schedule
from delaytasks.db import dialects
from delaytasks.exceptions import BadInput, NaiveDatetime
from delaytasks.testing import Timeouts, minutes
from delaytasks.testing.exceptions import ClockConflict
from project.shop.models import Customer, Order, Product

START = datetime(2041, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)


@pytest.fixture
def tick_model(db: None) -> Iterator[Any]:
    """A model with each kind of automatic time, in a table of its own."""
    with isolate_apps("project.shop"):

        class Tick(models.Model):
            by_default = models.DateTimeField(default=timezone.now)
            added = models.DateTimeField(auto_now_add=True)
            by_database = models.DateTimeField(db_default=Now())
            plain = models.IntegerField(db_default=7)

            class Meta:
                app_label = "shop"

        with connection.cursor() as cursor:
            moment, serial = ("timestamptz", "serial") if connection.vendor == "postgresql" else ("datetime", "integer")
            cursor.execute(
                f"CREATE TABLE shop_tick (id {serial} PRIMARY KEY, by_default {moment}, added {moment}, "
                f"by_database {moment} DEFAULT CURRENT_TIMESTAMP, plain integer DEFAULT 7)"
            )
        yield Tick
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE shop_tick")


@pytest.mark.on_both
@pytest.mark.timeouts(start=START)
def test_each_way_to_the_time_is_the_virtual_clock(tick_model: Any, timeouts: Timeouts) -> None:
    assert timezone.now() == timeouts.now == START
    tick = tick_model.objects.create()
    tick.refresh_from_db()
    assert (tick.by_default, tick.added, tick.by_database, tick.plain) == (START, START, START, 7)
    (bulk,) = tick_model.objects.bulk_create([tick_model()])
    assert tick_model.objects.filter(by_database=START).count() == 2, bulk
    assert tick_model.objects.filter(by_default__lte=Now()).count() == 2
    assert tick_model.objects.annotate(now=Now()).first().now == START
    timeouts.advance(minutes=1)
    assert tick_model.objects.filter(by_default__lte=Now() - timedelta(seconds=60)).count() == 2
    assert tick_model.objects.filter(by_default__lt=Now() - timedelta(seconds=60)).count() == 0
    tick_model.objects.update(added=Now())
    assert set(tick_model.objects.values_list("added", flat=True)) == {START + minutes(1)}
    assert databases.now_ms("default") == round((START + minutes(1)).timestamp() * 1000)


@pytest.mark.on_both
@pytest.mark.timeouts(start=START)
def test_now_in_raw_sql_is_the_servers(timeouts: Timeouts) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT CURRENT_TIMESTAMP")
        assert str(cursor.fetchone()[0])[:4] != "2041"


@pytest.mark.timeouts(start=START)
def test_now_in_expressions_and_groups_compiles(timeouts: Timeouts) -> None:
    customer = Customer.objects.create(name="Ann", email="ann@shop.example")
    Order.objects.create(customer=customer, pay_by=START + minutes(30))
    due = Order.objects.annotate(left=F("pay_by") - Now()).values("left").annotate(n=Count("pk")).get()
    assert due == {"left": minutes(30), "n": 1}


@pytest.mark.timeouts(start=START)
def test_templates_still_show_times_in_the_local_zone(timeouts: Timeouts) -> None:
    with timezone.override("Asia/Shanghai"):
        shown = Template("{{ at|date:'H:i' }}").render(Context({"at": START}))
    assert shown == "15:08"


def test_the_clock_stands_still(timeouts: Timeouts) -> None:
    first = timezone.now()
    time.sleep(0.002)
    assert timezone.now() == first
    assert abs(first.timestamp() - time.time()) < 60


def test_the_real_time_is_back_after_the_kit(db: None) -> None:
    with Timeouts(start=START):
        assert dialects.is_fixed()
    assert (dialects.is_fixed(), timezone.now().year) == (False, datetime.now(UTC).year)
    assert str(Now().as_sql.__qualname__) == "Func.as_sql"
    with pytest.raises(BadInput), Timeouts(start=START, using="nowhere"):
        pass
    assert not dialects.is_fixed()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda kit, naive: kit.advance_to(naive), id="advance_to"),
        pytest.param(lambda kit, naive: kit.travel_to(naive), id="travel_to"),
        pytest.param(lambda kit, naive: kit.assert_scheduled("t", due_at=naive), id="assert_scheduled"),
        pytest.param(lambda kit, naive: Timeouts(start=naive).__enter__(), id="start"),
    ],
)
def test_a_time_without_a_zone_is_refused_by_name(timeouts: Timeouts, ran: list[str], call: Callable[..., Any]) -> None:
    schedule("t", "1", delay=60)
    with pytest.raises(NaiveDatetime, match=r"datetime\.datetime\(2030, 1, 1, 0, 0\) has no time zone"):
        call(timeouts, datetime(2030, 1, 1))  # noqa: DTZ001  a naive time is what the test is about


def test_a_number_is_no_step(timeouts: Timeouts) -> None:
    with pytest.raises(BadInput, match=r"advance\(\) was called with 1800: give a timedelta"):
        timeouts.advance(1800)  # type: ignore[arg-type]


@pytest.mark.timeouts(start=START)
def test_a_due_time_far_from_the_real_time_is_allowed(timeouts: Timeouts, ran: list[str]) -> None:
    schedule("t", "1", due_at=START + timedelta(days=3000))
    assert len(timeouts.advance(days=3000)) == 1


# Other libraries


def test_the_clock_of_time_machine_is_followed(timeouts: Timeouts, ran: list[str]) -> None:
    with time_machine.travel(START, tick=False) as traveller:
        job = schedule("t", "1", delay=minutes(30))
        assert (timeouts.now, job.due_at) == (START, START + minutes(30))
        traveller.shift(minutes(29))
        assert not timeouts.run_due()
        traveller.shift(minutes(1))
        assert len(timeouts.run_due()) == 1
    assert timeouts.now.year != 2041


def test_advance_moves_the_clock_of_time_machine(timeouts: Timeouts, register: Any) -> None:
    seen: list[datetime] = []
    register("t", lambda job: seen.append(datetime.now(UTC)))
    with time_machine.travel(START + timedelta(microseconds=1), tick=False):
        schedule("t", "1", delay=minutes(30))
        timeouts.advance(hours=1)
        assert datetime.now(UTC) >= START + timedelta(hours=1)
        assert datetime.now(UTC) - START - timedelta(hours=1) < timedelta(milliseconds=1)
    assert seen[0].replace(microsecond=0) == (START + minutes(30)).replace(microsecond=0)


def test_the_kit_starts_at_the_time_of_time_machine(db: None) -> None:
    with time_machine.travel(START, tick=False), Timeouts() as timeouts:
        assert timeouts.now == START


def test_freezegun_is_refused_at_the_start(db: None) -> None:
    with freezegun.freeze_time("2030-01-01"), pytest.raises(ClockConflict, match="freezegun is active"):
        Timeouts().__enter__()
    assert not dialects.is_fixed()


def test_freezegun_is_refused_inside(timeouts: Timeouts, ran: list[str]) -> None:
    with freezegun.freeze_time("2030-01-01"):
        for call in (timeouts.run_due, lambda: schedule("t", "1", delay=1)):
            with pytest.raises(ClockConflict, match="Remove freeze_time"):
                call()


def test_a_clock_that_another_library_took_away_is_noticed(timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # undone before the kit ends
        patch.setattr(timezone, "datetime", datetime)  # what freezegun does when it ends
        with pytest.raises(ClockConflict, match="has replaced the clock"):
            timeouts.run_due()


def test_subclasses_of_datetime_stay_what_they_are(timeouts: Timeouts) -> None:
    assert isinstance(timezone.now(), datetime)
    assert type(timezone.localtime()) is datetime
    assert timezone.is_aware(Product(name="x", price=Decimal(1)).pk or timezone.now())
