"""sync(): the live jobs of rows become what the model's table says."""

import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import connection, transaction
from django.db.models import F, Q

from delaytasks import cancel, clock, jobs_of, mirror, reschedule, signals
from delaytasks.calendars import hours
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.timeouts import desired_jobs, receivers, reconcile
from delaytasks.timeouts.declarations import Declaration
from delaytasks.timeouts.sync import Synced, sync
from tests.support.locks import somebody_waits
from tests.support.servers import wait_until

from .app.models import Badge, CourierOrder, Customer, Device, OpenOrder, Order, Reading, RushOrder, Ticket
from .conftest import HALF_HOUR, START, live

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("automatic", "db_clock")]
Declare = Callable[..., Declaration]


def in_sync(declaration: Declaration, *pks: Any) -> tuple[int, int, int]:
    return sync(declaration, pks, using="default")[:3]


def test_a_row_that_matches_gets_one_job_with_the_row_as_its_subject(declare: Declare) -> None:
    close = declare(Order, after=HALF_HOUR, while_=Q(state="open"))
    order = Order.objects.create(created_at=START)
    assert in_sync(close, order.pk) == (1, 0, 0)
    assert in_sync(close, order.pk) == (0, 0, 0)
    job = Job.objects.get()
    assert (job.topic, job.key, job.due_at, job.declared_due) == (
        "declared.close", f"order:{order.pk}", START + HALF_HOUR, START + HALF_HOUR
    )  # fmt: skip
    assert job.subject == order


def test_a_changed_time_moves_the_job_and_records_it(declare: Declare) -> None:
    close = declare(Order, after="window")
    order = Order.objects.create(created_at=START)
    in_sync(close, order.pk)
    Order.objects.update(window=timedelta(hours=1))
    assert in_sync(close, order.pk) == (0, 1, 0)
    job = Job.objects.get()
    assert job.due_at == job.declared_due == START + timedelta(hours=1)
    event = job.events.get()
    assert (event.outcome, event.due_ms) == ("rescheduled", clock.to_ms(START + HALF_HOUR))


def test_a_job_whose_row_no_longer_matches_is_cancelled_and_made_again_when_it_does(declare: Declare) -> None:
    close = declare(Order, after=HALF_HOUR, while_=Q(state="open"))
    order = Order.objects.create(created_at=START)
    in_sync(close, order.pk)
    Order.objects.update(state="paid")
    assert in_sync(close, order.pk) == (0, 0, 1)
    assert Job.objects.get().events.get().reason == "unmet"
    Order.objects.update(state="open")
    assert in_sync(close, order.pk) == (1, 0, 0)


def test_the_job_of_a_deleted_row_is_cancelled(declare: Declare) -> None:
    close = declare(Order)
    order = Order.objects.create(created_at=START + HALF_HOUR)
    pk = order.pk
    in_sync(close, pk)
    Order.objects.all().delete()
    assert in_sync(close, pk) == (0, 0, 1)


@pytest.mark.parametrize("missing", ["created_at", "window"])
def test_a_null_field_means_no_job(declare: Declare, missing: str) -> None:
    close = declare(Order, after="window")
    order = Order.objects.create(**{"created_at": START, missing: None})
    assert in_sync(close, order.pk) == (0, 0, 0)


def test_a_job_that_a_person_cancelled_is_done_for_that_due_time(declare: Declare) -> None:
    close = declare(Order, after="window")
    order = Order.objects.create(created_at=START)
    in_sync(close, order.pk)
    Job.objects.update(topic="declared.close")
    cancel("declared.close", f"order:{order.pk}")
    assert in_sync(close, order.pk) == (0, 0, 0)
    Order.objects.update(window=timedelta(hours=2))
    assert in_sync(close, order.pk) == (1, 0, 0)


@pytest.mark.parametrize("state", [State.FINISHED, State.CANCELLED, State.DEAD])
def test_an_ended_job_is_done_for_its_declared_due(declare: Declare, state: State) -> None:
    close = declare(Order, after="window")
    order = Order.objects.create(created_at=START)
    in_sync(close, order.pk)
    Job.objects.update(state=state, ended_at=START, died_at=START if state is State.DEAD else None)
    assert in_sync(close, order.pk) == (0, 0, 0)
    Order.objects.update(window=timedelta(hours=2))
    assert in_sync(close, order.pk) == (1, 0, 0)


def test_what_people_moved_stands(declare: Declare) -> None:
    close = declare(Order, after=HALF_HOUR)
    order = Order.objects.create(created_at=START)
    in_sync(close, order.pk)
    reschedule("declared.close", f"order:{order.pk}", delay=7200)
    assert in_sync(close, order.pk) == (0, 0, 0)
    assert live() == {f"order:{order.pk}": START + timedelta(hours=2)}


def test_a_running_job_is_left_alone(declare: Declare) -> None:
    close = declare(Order, after="window", while_=Q(state="open"))
    order = Order.objects.create(created_at=START)
    in_sync(close, order.pk)
    Job.objects.update(state=State.RESERVED, attempt=1, lease_until=START)
    Order.objects.update(state="paid")
    assert in_sync(close, order.pk) == (0, 0, 0)
    Order.objects.update(state="open", window=timedelta(hours=2))
    assert in_sync(close, order.pk) == (0, 0, 0)


@pytest.mark.parametrize("microsecond", [0, 1, 999, 1000, 123_000, 123_001, 999_999])
def test_the_due_time_is_rounded_up_alike_in_sql_and_in_python(declare: Declare, microsecond: int) -> None:
    close = declare(Order, before=HALF_HOUR)
    created_at = START.replace(microsecond=microsecond) + HALF_HOUR * 2
    order = Order.objects.create(created_at=created_at)
    in_sync(close, order.pk)
    assert Job.objects.get().declared_due == clock.from_ms(clock.to_ms(created_at - HALF_HOUR))


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("options", [{"after": timedelta(days=1)}, {"after": "window"}, {"before": timedelta(days=1)}])
def test_a_day_has_24_hours_in_each_zone_of_the_session(declare: Declare, options: dict[str, Any]) -> None:
    """A database may have a TIME_ZONE of its own. On that Sunday clocks change in Berlin."""
    close = declare(Order, **options)
    begin, day = datetime(2030, 3, 31, 0, 30, tzinfo=UTC), timedelta(days=1)
    order = Order.objects.create(created_at=begin if "after" in options else begin + day, window=day)
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Europe/Berlin'")
        in_sync(close, order.pk)
        cursor.execute("SET TIME ZONE 'UTC'")
    assert Job.objects.get().declared_due == (begin + day if "after" in options else begin)


def keyed() -> list[Any]:
    device = Device.objects.create(seen_at=START)
    return [
        (Order, "created_at", Order.objects.create(created_at=START)),
        (Ticket, "opened_at", Ticket._base_manager.create(code="a' %s ü", opened_at=START, deleted=True)),
        (Device, "seen_at", device),
        (Reading, "taken_at", Reading.objects.create(at=Decimal("1.50"), taken_at=START)),
        (Badge, "until", Badge.objects.create(device=device, until=START)),
        (RushOrder, "promised_at", RushOrder.objects.create(promised_at=START)),
        (CourierOrder, "created_at", CourierOrder.objects.create(created_at=START)),
        (OpenOrder, "created_at", OpenOrder.objects.create(created_at=START)),
    ]


def test_keys_are_as_python_writes_them_for_each_kind_of_primary_key(declare: Declare) -> None:
    for model, on, row in keyed():
        declared = declare(model, on, "any.topic")
        assert in_sync(declared, row.pk) == (1, 0, 0), model
        job = Job.objects.get()
        concrete = model._meta.concrete_model
        assert job.key == f"{concrete._meta.model_name}:{row.pk}"
        assert job.subject == concrete._base_manager.get(pk=row.pk)
        assert in_sync(declared, str(row.pk)) == (0, 0, 0)  # by its text
        Job.objects.all().delete()


def test_a_decimal_key_is_as_the_database_returns_it(declare: Declare) -> None:
    receivers.connect(declare(Reading, "taken_at", "reading.check"))
    reading = Reading.objects.create(at=Decimal(1), taken_at=START)
    assert list(live()) == ["reading:1.00"]
    assert jobs_of(reading).count() == 1
    Reading(at=1).delete()
    assert live() == {}


def test_a_primary_key_that_fits_no_key_has_no_job_and_hurts_no_other_row(declare: Declare, caplog: Any) -> None:
    declared = declare(Reading, "taken_at", "reading.check")
    good = Reading.objects.create(at=Decimal("1.00"), taken_at=START)
    assert in_sync(declared, good.pk, "nonsense", uuid.uuid4()) == (1, 0, 0)


def test_conditions_over_forward_relations(declare: Declare) -> None:
    close = declare(Order, after=HALF_HOUR, while_=Q(customer__active=True) & ~Q(note=F("state")))
    asleep, awake = Customer.objects.create(active=False), Customer.objects.create()
    orders = [Order.objects.create(created_at=START, customer=each) for each in (None, asleep, awake)]
    assert in_sync(close, *(order.pk for order in orders)) == (1, 0, 0)
    assert list(live()) == [f"order:{orders[2].pk}"]


def test_a_condition_that_can_never_be_true_cancels(declare: Declare) -> None:
    order = Order.objects.create(created_at=START)
    in_sync(declare(Order), order.pk)
    assert in_sync(declare(Order, while_=Q(state__in=[])), order.pk) == (0, 0, 1)


@pytest.mark.parametrize(
    ("if_past", "age", "runs"),
    [("run", timedelta(days=9), True), ("skip", timedelta(seconds=1), False), ("skip", -timedelta(seconds=1), True),
     (timedelta(hours=1), timedelta(minutes=59), True), (timedelta(hours=1), timedelta(minutes=61), False)],
)  # fmt: skip
def test_if_past_decides_about_times_that_have_passed(declare: Declare, if_past: Any, age: Any, runs: bool) -> None:
    remind = declare(Order, if_past=if_past)
    order = Order.objects.create(created_at=START - age)
    assert in_sync(remind, order.pk) == (int(runs), 0, 0)
    assert all(due >= START for due in live().values())


def test_a_live_job_that_moves_into_a_skipped_past_is_cancelled(declare: Declare) -> None:
    remind = declare(Order, if_past="skip")
    order = Order.objects.create(created_at=START + HALF_HOUR)
    in_sync(remind, order.pk)
    Order.objects.update(created_at=START - HALF_HOUR)
    assert in_sync(remind, order.pk) == (0, 0, 1)


def test_a_job_that_waits_for_its_worker_is_not_cancelled_because_its_time_has_passed(
    declare: Declare, db_clock: Any
) -> None:
    remind = declare(Order, if_past="skip")
    order = Order.objects.create(created_at=START + HALF_HOUR)
    in_sync(remind, order.pk)
    db_clock.advance(seconds=7200)
    assert in_sync(remind, order.pk) == (0, 0, 0)


def by_hand(order: Order) -> None:
    """Schedule a job about the row without a declared time, as code from before the declaration did."""
    from delaytasks import handler, handlers, schedule

    handler("declared.close")(lambda job: None)
    try:
        schedule("declared.close", f"order:{order.pk}", delay=99)
    finally:
        handlers.unregister("declared.close")


def test_a_live_job_without_declared_time_is_adopted(declare: Declare) -> None:
    order = Order.objects.create(created_at=START)
    by_hand(order)
    assert in_sync(declare(Order, after=HALF_HOUR), order.pk) == (0, 1, 0)
    assert live() == {f"order:{order.pk}": START + HALF_HOUR}


@pytest.mark.on_both
@pytest.mark.parametrize("if_past", ["run", "skip"])
def test_a_job_without_declared_time_stands_once_the_timeout_has_fired(declare: Declare, if_past: Any) -> None:
    close = declare(Order, after="window", if_past=if_past)
    order = Order.objects.create(created_at=START)
    in_sync(close, order.pk)
    Job.objects.update(state=State.FINISHED, ended_at=START)
    by_hand(order)
    assert in_sync(close, order.pk) == (0, 0, 0)
    assert live() == {f"order:{order.pk}": START + timedelta(seconds=99)}
    Order.objects.update(window=timedelta(hours=2))  # this due time has not fired
    assert in_sync(close, order.pk) == (0, 1, 0)
    assert live() == {f"order:{order.pk}": START + timedelta(hours=2)}


@pytest.mark.on_both
def test_a_skipped_past_cancels_no_job_without_declared_time(declare: Declare) -> None:
    remind = declare(Order, if_past="skip")
    order = Order.objects.create(created_at=START - HALF_HOUR)
    by_hand(order)
    assert in_sync(remind, order.pk) == (0, 0, 0)
    assert live() == {f"order:{order.pk}": START + timedelta(seconds=99)}


def test_calendars_count_working_time(declare: Declare) -> None:
    from delaytasks import Calendar

    office = Calendar("test-office", tz="UTC", hours={"mon-fri": "09:00-17:00"})
    close = declare(Order, after=hours(8), calendar=office)
    order = Order.objects.create(created_at=START)  # a Tuesday
    in_sync(close, order.pk)
    assert live() == {f"order:{order.pk}": START.replace(hour=17)}


def test_a_rollback_leaves_nothing(declare: Declare) -> None:
    close = declare(Order)
    with pytest.raises(RuntimeError), transaction.atomic():
        order = Order.objects.create(created_at=START)
        in_sync(close, order.pk)
        raise RuntimeError
    assert live() == {}


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_locked_rows_are_left_out_and_named(declare: Declare, in_another_session: Any) -> None:
    for model in (Order, CourierOrder):
        Job.objects.all().delete()
        declared = declare(model)
        rows = [model.objects.create(created_at=START) for _ in range(3)]
        in_another_session(f"UPDATE declared_order SET note = 'x' WHERE id = {rows[1].pk}")
        found = sync(declared, [row.pk for row in rows], using="default", skip_locked=True)
        assert found == Synced(2, 0, 0, [rows[1].pk])


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_rows_that_refer_to_a_locked_row_can_be_inserted_meanwhile(declare: Declare, in_another_session: Any) -> None:
    close = declare(Order)
    order = Order.objects.create(created_at=START)
    with transaction.atomic():
        in_sync(close, order.pk)
        in_another_session(
            "SET lock_timeout = '2s'; SET CONSTRAINTS ALL IMMEDIATE;"  # the key is checked now, not at the commit
            f"INSERT INTO declared_line (order_id) VALUES ({order.pk})"
        )


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_rows_are_locked_in_the_order_of_their_keys(declare: Declare, in_another_session: Any) -> None:
    close = declare(Order)
    first, second, third = (Order.objects.create(created_at=START) for _ in range(3))
    commit = in_another_session(f"SELECT 1 FROM declared_order WHERE id = {second.pk} FOR UPDATE")

    def sync_and_close() -> None:
        in_sync(close, third.pk, second.pk, first.pk)
        connection.close()

    thread = threading.Thread(target=sync_and_close)
    thread.start()
    wait_until(somebody_waits, seconds=10, what="the lock of the second row")
    with transaction.atomic():
        assert list(Order.objects.select_for_update(skip_locked=True)) == [third]
    commit()
    thread.join(30)
    assert len(live()) == 3


def test_sync_of_a_database_without_jobs_is_refused(declare: Declare) -> None:
    from delaytasks.exceptions import BadInput

    with pytest.raises(BadInput, match="have no jobs"):
        sync(declare(Order, using="other"), [1], using="default")


def test_sync_asks_one_question_if_nothing_differs(declare: Declare, django_assert_num_queries: Any) -> None:
    close = declare(Order)
    pks = [Order.objects.create(created_at=START).pk for _ in range(20)]
    in_sync(close, *pks)
    with django_assert_num_queries(1):
        assert sync(close, pks, using="default", lock=False)[:3] == (0, 0, 0)


def test_the_sql_for_one_row_is_built_once_and_serves_each_row(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building it takes longer than executing it, and each save needs it."""
    declared = {
        model: declare(model, on, topic=f"declared.{on}", **options)
        for model, on, options in (
            (Order, "created_at", {"after": "window", "while_": Q(state="open")}),
            (Device, "seen_at", {"after": HALF_HOUR}),
            (Ticket, "opened_at", {"while_": Q(deleted=False)}),
        )
    }
    built = []
    compile_sql = desired_jobs._compile
    monkeypatch.setattr(desired_jobs, "_compile", lambda *args: built.append(args) or compile_sql(*args))
    for minute in range(3):
        at = START + timedelta(minutes=minute)
        rows = [
            Order.objects.create(created_at=at, window=timedelta(hours=minute)), Device.objects.create(seen_at=at),
            Ticket.objects.create(code=f"T%s{minute}", opened_at=at),
        ]  # fmt: skip
        for row, after in zip(rows, (timedelta(hours=minute), HALF_HOUR, timedelta(0)), strict=True):
            declaration = declared[type(row)]
            assert in_sync(declaration, row.pk) == (1, 0, 0)
            assert Job.objects.get(topic=declaration.topic, subject_pk=str(row.pk)).declared_due == at + after
    assert len(built) == len(declared)


def test_a_row_for_which_the_calendar_has_no_time_has_no_job_and_disturbs_no_other(
    declare: Declare, caplog: Any
) -> None:
    from delaytasks import Calendar

    mondays = Calendar("test-mondays", tz="UTC", hours={"mon": "09:00-10:00"})
    close = declare(Order, after="window", calendar=mondays)
    receivers.connect(close)
    good = Order.objects.create(created_at=START, window=timedelta(hours=1))
    moved = Order.objects.create(created_at=START, window=timedelta(hours=1))
    moved.window = timedelta(days=60)  # of open time, which takes 27 years
    moved.save()
    assert list(live()) == [f"order:{good.pk}"]
    caplog.clear()
    bad = Order.objects.bulk_create([Order(created_at=START, window=timedelta(days=60)), Order(created_at=START)])
    Order.objects.filter(pk=bad[1].pk).update(window=timedelta(days=3_000_000))
    assert reconcile.reconcile("default")[close.topic][:3] == (0, 0, 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "declared.close: 3 rows have no job, because" in caplog.text
    assert f"'{bad[0].pk}'" in caplog.text
    Order.objects.filter(pk=moved.pk).update(window=timedelta(hours=1))
    assert reconcile.reconcile("default")[close.topic][:3] == (1, 0, 0)


NEVER = datetime.max.replace(tzinfo=UTC)
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("model", "row", "options"),
    [
        (Order, {"created_at": NEVER}, {}),
        (Order, {"created_at": NEVER}, {"after": HALF_HOUR}),
        (Order, {"created_at": NEVER}, {"before": HALF_HOUR}),
        (Order, {"created_at": datetime(9999, 12, 31, tzinfo=UTC)}, {"after": "window"}),
        (Order, {"created_at": LONG_AGO}, {"before": HALF_HOUR}),
        (Order, {"created_at": LONG_AGO}, {"before": "window"}),
        (Order, {"created_at": datetime(1970, 1, 1, tzinfo=UTC)}, {"before": timedelta(milliseconds=1)}),
        (Order, {"created_at": datetime(9999, 1, 1, tzinfo=UTC)}, {}),
        (Order, {"created_at": START, "window": timedelta(days=3_000_000)}, {"after": "window"}),
        (Order, {"created_at": START, "window": timedelta(days=-3_000_000)}, {"after": "window"}),
        (Order, {"created_at": START, "window": timedelta(days=100_000_000)}, {"before": "window"}),
        (Order, {"created_at": NEVER}, {"after": HALF_HOUR, "calendar": True}),
        (Order, {"created_at": LONG_AGO}, {"before": HALF_HOUR, "calendar": True}),
        (Reading, {"taken_at": NEVER, "at": 2}, {"after": HALF_HOUR}),
    ],
)  # fmt: skip
def test_a_due_time_that_cannot_be_stored_means_no_job(
    declare: Declare, caplog: Any, model: Any, row: dict[str, Any], options: dict[str, Any]
) -> None:
    from delaytasks import Calendar

    if "calendar" in options:
        options = options | {"calendar": Calendar("test-always", tz="UTC", hours={"mon-sun": "00:00-24:00"})}
    close = declare(model, next(iter(row)), **options)
    receivers.connect(close)
    bad = model.objects.create(**row)
    good = model.objects.create(**row | {"at": 3} if "at" in row else row)
    model.objects.filter(pk=good.pk).update(**{close.on: START} | ({"window": HALF_HOUR} if model is Order else {}))
    caplog.clear()
    assert reconcile.reconcile("default")[close.topic][:3] == (1, 0, 0)
    assert "1 rows have no job" in caplog.text
    assert [job.subject for job in Job.objects.all()] == [good]
    model.objects.filter(pk=good.pk).update(**{name: row[name] for name in row if name != "at"})
    assert reconcile.reconcile("default")[close.topic][:3] == (0, 0, 1)
    assert f"{bad.pk!s}" in caplog.text


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "12000-01-01"])
@pytest.mark.parametrize("model", [Order, CourierOrder])
@pytest.mark.parametrize("has_calendar", [False, True])
def test_a_moment_that_python_cannot_read_means_no_job(
    declare: Declare, moment: str, model: Any, has_calendar: bool
) -> None:
    from delaytasks import Calendar

    calendar = Calendar("test-always", tz="UTC", hours={"mon-sun": "00:00-24:00"}) if has_calendar else None
    close = declare(model, after=HALF_HOUR, calendar=calendar)
    good, live_one, new = [model.objects.create(created_at=START) for _ in range(3)]
    in_sync(close, live_one.pk)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE declared_order SET created_at = %s WHERE id IN (%s, %s)", [moment, live_one.pk, new.pk]
        )  # fmt: skip
    assert reconcile.reconcile("default")[close.topic][:3] == (1, 0, 1)
    assert [job.subject_pk for job in Job.objects.live()] == [str(good.pk)]


@pytest.mark.parametrize("moment", [datetime(1970, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)])
def test_the_first_and_the_last_due_time_can_be_stored(declare: Declare, moment: datetime) -> None:
    close = declare(Order, if_past="run")
    order = Order.objects.create(created_at=moment)
    assert in_sync(close, order.pk) == (1, 0, 0)
    assert in_sync(close, order.pk) == (0, 0, 0)
    assert Job.objects.get().declared_due == moment


def test_the_mirror_learns_of_moved_jobs_before_receivers_run(
    declare: Declare, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    """A moved job may be due at once, and the mirror has it at its former time."""
    close = declare(Order, after=HALF_HOUR)
    moved = Order.objects.create(created_at=START + timedelta(hours=2))
    in_sync(close, moved.pk)
    Order.objects.update(created_at=START)
    new = Order.objects.create(created_at=START)
    moved_id, done = Job.objects.get().id, list[Any]()
    index = Mock(add=lambda entries, mark: done.append([entry.id for entry in entries]))
    monkeypatch.setattr(mirror, "writable", lambda using: index)

    def receive(job: Job, **_: Any) -> None:
        done.append("receiver")

    signals.job_scheduled.connect(receive)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            assert in_sync(close, moved.pk, new.pk) == (1, 1, 0)
    finally:
        signals.job_scheduled.disconnect(receive)
    assert done.index([moved_id]) < done.index("receiver")
