"""Replaying an order history and checking the result."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from django.db import connection

from delaytasks.models import Job
from delaytasks.worker import runner
from project.demo.order_csv import History, PastOrder
from project.demo.replay import Replay, timeline
from project.demo.summary import Summary, missing_stock, percentile, replay_orders
from project.shop.models import Order, Payment, Product
from project.shop.services import pay_order, place_order

NINE = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)


def past_order(order_id, minute, paid_after=None):
    """Return an order bought this many minutes after nine o'clock and paid `paid_after` minutes later."""
    purchased_at = NINE + timedelta(minutes=minute)
    approved_at = None if paid_after is None else purchased_at + timedelta(minutes=paid_after)
    return PastOrder(order_id, purchased_at, approved_at)


@pytest.fixture
def closing_worker(transactional_db):
    """Run due close jobs in a thread during the test."""
    stop = Event()

    def work():
        while not stop.is_set():
            runner.run_topic("order.close", using="default", worker="test", dispatch_topic=lambda topic: None)
            stop.wait(0.005)
        connection.close()

    thread = Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join(30)


@pytest.fixture
def replay(tmp_path):
    """Return a factory of replays; `replay.lines` has the output."""

    def make(*orders, speed=3600.0, bad_rows=(), stop=None):
        lines = []
        history = History(Path("orders.csv"), list(orders), list(bad_rows))
        replay = Replay(history, speed, lines.append, stop or Event(), tmp_path / "replay")
        replay.lines = lines
        return replay

    return make


def test_the_timeline_is_chronological():
    entries = timeline([past_order("a", 0, 50), past_order("b", 10, 5), past_order("c", 15)])

    assert [(is_payment, order.order_id) for _, is_payment, _, order in entries] == [
        (0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "a"),
    ]  # fmt: skip


def test_a_replay_places_pays_and_closes_orders_and_passes_its_checks(closing_worker, replay):
    run = replay(
        past_order("in time", 0, 2),
        past_order("never", 1),
        past_order("too late", 2, 90),
        past_order("at once", 3, 0),
        speed=1800.0,  # 30 minutes to pay take one second
    )

    status = run.run()

    states = {order.external_id.split(":")[1]: order.state for order in replay_orders(run.name)}
    assert states == {"in time": "paid", "never": "closed", "too late": "closed", "at once": "paid"}
    assert status == 0
    output = "\n".join(run.lines)
    assert "4 orders placed." in output
    assert "2 paid in time: their closes were cancelled." in output
    assert "2 closed: not paid in time." in output
    assert "1 payments came too late: their orders stay closed." in output
    assert "passed: no order was both paid in time and closed." in output
    assert "ms late at the median" in output
    assert Product.objects.get(name=run.name).stock == 2


def test_a_time_to_pay_below_a_millisecond_works(closing_worker, replay):
    run = replay(*(past_order(f"order {n}", n, 1 if n % 2 else None) for n in range(20)), speed=1e9)

    assert run.run() == 0
    assert Counter(replay_orders(run.name).values_list("state", flat=True))["open"] == 0
    assert Payment.objects.count() == replay_orders(run.name).filter(state="paid").count()


def test_the_same_history_can_be_replayed_again(closing_worker, replay):
    assert [replay(past_order("a", 0, 1), speed=1e5).run() for _ in range(2)] == [0, 0]

    assert Order.objects.count() == 2


def test_a_stopped_replay_prints_its_summary(db, replay):
    stop = Event()
    run = replay(past_order("first", 0), past_order("tomorrow", 1440), speed=1.0, stop=stop)

    status = run.run(on_poll=stop.set)

    output = "\n".join(run.lines)
    assert status == 0
    assert "stopped early" in output
    assert "passed: no order was both paid in time and closed." in output
    assert "left open" not in output


def test_invalid_rows_are_counted_and_listed_in_a_report_file(db, replay, tmp_path):
    stop = Event()
    stop.set()
    bad = [f"line {n}: the order id is missing" for n in range(2, 52)]
    run = replay(past_order("a", 0), bad_rows=bad, stop=stop)

    run.run()

    (report,) = (tmp_path / "replay").iterdir()
    assert report.read_text().splitlines() == bad
    output = "\n".join(run.lines)
    assert "50 rows of the file are invalid" in output
    assert "line 2:" in output
    assert "line 51:" not in output
    assert str(report) in output


def test_an_order_that_stays_open_fails_the_checks(db, replay, monkeypatch):
    monkeypatch.setattr("project.demo.replay.WAIT_SECONDS", 0.05)
    run = replay(past_order("no worker", 0), speed=1e6)

    assert run.run() == 1
    assert "  FAILED: no order was left open (1)." in run.lines


# Checks


@pytest.fixture
def summary(customer, tea):
    """Return the order of a replay named "r", and a function that collects its summary after the test changed rows."""
    order = place_order(customer, [(tea, 1)], external_id="r:1")
    defaults = {"too_late": Counter(), "completed": True}
    return order, lambda **options: Summary.collect("r", tea, 10, **(defaults | options))


def failed(summary):
    return {rule for rule, failures in summary.checks() if failures}


def test_a_paid_order_passes_all_checks(summary):
    order, collect = summary
    pay_order(order.pk)

    assert failed(collect()) == set()
    assert collect().passed()


def test_an_order_both_paid_and_closed_is_detected(summary):
    order, collect = summary
    pay_order(order.pk)
    Order.objects.filter(pk=order.pk).update(state="closed", closed_at=order.pay_by)
    Product.objects.update(stock=10)

    assert failed(collect()) == {"no order was both paid in time and closed"}
    assert not collect().passed()


def test_stock_returned_twice_is_detected(summary):
    _, collect = summary
    Product.objects.update(stock=11)

    assert missing_stock(Product.objects.get(), 10) == -2
    assert "every close returned its stock exactly once" in failed(collect())


def test_an_early_close_is_detected(summary):
    result = summary[1]()
    result.late_ms = [-1, 4]

    assert "no order was closed early" in failed(result)


def test_an_open_order_fails_only_a_completed_replay(summary):
    _, collect = summary

    assert failed(collect()) == {"no order was left open"}
    assert failed(collect(completed=False)) == set()


def test_payments_that_were_in_time_in_the_history_are_counted_separately(summary):
    _, collect = summary

    lines = list(collect(too_late=Counter({"in the history": 2, "here": 1})).lines())

    assert any("3 payments came too late" in line and "1 of them were in time in the history" in line for line in lines)


def test_percentiles_of_a_list():
    assert [percentile([1, 2, 3, 4], share) for share in (0.5, 0.99, 0.0)] == [2, 4, 1]
    assert percentile([7], 0.5) == 7


def test_a_replay_schedules_the_close_of_each_order(db, replay):
    stop = Event()
    run = replay(past_order("a", 0), speed=1.0, stop=stop)
    run.run(on_poll=lambda: Order.objects.exists() and stop.set())

    order = replay_orders(run.name).get()
    assert Job.objects.get().key == order.key
    assert order.pay_by - order.created_at == timedelta(minutes=30)
