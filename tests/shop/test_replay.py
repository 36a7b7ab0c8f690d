"""Replaying an order history, and the proof at its end."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from django.db import connection

from delaytasks import worker
from delaytasks.models import Job
from project.shop.history import History, PastOrder
from project.shop.models import Order, Payment, Product
from project.shop.replay import Replay, timeline
from project.shop.services import pay_order, place_order
from project.shop.summary import Summary, at_share, missing_stock, orders_of

NINE = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)


def past(order_id, minute, paid_after=None):
    """An order bought so many minutes after nine, and paid so many minutes after that."""
    purchased_at = NINE + timedelta(minutes=minute)
    approved_at = None if paid_after is None else purchased_at + timedelta(minutes=paid_after)
    return PastOrder(order_id, purchased_at, approved_at)


@pytest.fixture
def closing_worker(transactional_db):
    """A worker that runs what is due, as long as the test lasts."""
    stop = Event()

    def work():
        while not stop.is_set():
            worker.run_topic("order.close", using="default", worker="test", ring=lambda topic: None)
            stop.wait(0.005)
        connection.close()

    thread = Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join(30)


@pytest.fixture
def replay(tmp_path):
    """Makes a replay of these orders; what it says is in `replay.said`."""

    def make(*orders, speed=3600.0, bad_rows=(), stop=None):
        said = []
        history = History(Path("orders.csv"), list(orders), list(bad_rows))
        made = Replay(history, speed, said.append, stop or Event(), tmp_path / "replay")
        made.said = said
        return made

    return make


def test_the_timeline_has_purchases_and_payments_in_their_order():
    entries = timeline([past("a", 0, 50), past("b", 10, 5), past("c", 15)])

    assert [(is_payment, order.order_id) for _, is_payment, _, order in entries] == [
        (0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "a"),
    ]  # fmt: skip


def test_a_replay_places_pays_closes_and_proves_it(closing_worker, replay):
    run = replay(
        past("in time", 0, 2),
        past("never", 1),
        past("too late", 2, 90),
        past("at once", 3, 0),
        speed=1800.0,  # half an hour to pay in is a second
    )

    status = run.run()

    states = {order.external_id.split(":")[1]: order.state for order in orders_of(run.name)}
    assert states == {"in time": "paid", "never": "closed", "too late": "closed", "at once": "paid"}
    assert status == 0
    told = "\n".join(run.said)
    assert "4 orders placed." in told
    assert "2 paid in time: their closes were called off." in told
    assert "2 closed: nobody had paid them in time." in told
    assert "1 payments came too late: their orders stay closed." in told
    assert "checked: no order was both paid in time and closed." in told
    assert "ms late at the median" in told
    assert Product.objects.get(name=run.name).stock == 2


def test_a_timeout_below_a_millisecond_is_still_right(closing_worker, replay):
    run = replay(*(past(f"order {n}", n, 1 if n % 2 else None) for n in range(20)), speed=1e9)

    assert run.run() == 0
    assert Counter(orders_of(run.name).values_list("state", flat=True))["open"] == 0
    assert Payment.objects.count() == orders_of(run.name).filter(state="paid").count()


def test_the_same_history_can_be_replayed_again(closing_worker, replay):
    assert [replay(past("a", 0, 1), speed=1e5).run() for _ in range(2)] == [0, 0]

    assert Order.objects.count() == 2


def test_a_replay_that_is_stopped_sums_up_what_was_done(db, replay):
    stop = Event()
    run = replay(past("first", 0), past("tomorrow", 1440), speed=1.0, stop=stop)

    status = run.run(watch=stop.set)

    told = "\n".join(run.said)
    assert status == 0
    assert "stopped before its end" in told
    assert "checked: no order was both paid in time and closed." in told
    assert "left open" not in told


def test_bad_rows_are_counted_listed_and_kept_in_full(db, replay, tmp_path):
    stop = Event()
    stop.set()
    bad = [f"line {n}: the order id is missing" for n in range(2, 52)]
    run = replay(past("a", 0), bad_rows=bad, stop=stop)

    run.run()

    (report,) = (tmp_path / "replay").iterdir()
    assert report.read_text().splitlines() == bad
    told = "\n".join(run.said)
    assert "50 rows of the file cannot be used" in told
    assert "line 2:" in told
    assert "line 51:" not in told
    assert str(report) in told


def test_an_order_that_nothing_closes_fails_the_proof(db, replay, monkeypatch):
    monkeypatch.setattr("project.shop.replay.WAIT_SECONDS", 0.05)
    run = replay(past("nobody works", 0), speed=1e6)

    assert run.run() == 1
    assert "  FAILED: no order was left open (1)." in run.said


# The proof itself


@pytest.fixture
def summary(customer, tea):
    """The summary of a replay named "r" with one order; called after the test has bent the rows."""
    order = place_order(customer, [(tea, 1)], external_id="r:1")
    return order, lambda **more: Summary.of("r", tea, 10, **({"too_late": Counter(), "finished": True} | more))


def failed(made):
    return {words for words, cases in made.checks() if cases}


def test_a_paid_order_passes(summary):
    order, made = summary
    pay_order(order.pk)

    assert failed(made()) == set()
    assert made().holds()


def test_an_order_both_paid_and_closed_is_found(summary):
    order, made = summary
    pay_order(order.pk)
    Order.objects.filter(pk=order.pk).update(state="closed", closed_at=order.pay_by)
    Product.objects.update(stock=10)

    assert failed(made()) == {"no order was both paid in time and closed"}
    assert not made().holds()


def test_stock_given_back_twice_is_found(summary):
    _, made = summary
    Product.objects.update(stock=11)

    assert missing_stock(Product.objects.get(), 10) == -2
    assert "every close gave its stock back exactly once" in failed(made())


def test_a_close_before_its_time_is_found(summary):
    made = summary[1]()
    made.late_ms = [-1, 4]

    assert "no order was closed before its time" in failed(made)


def test_an_open_order_is_found_only_at_the_end(summary):
    _, made = summary

    assert failed(made()) == {"no order was left open"}
    assert failed(made(finished=False)) == set()


def test_payments_that_were_in_time_in_the_history_are_told_apart(summary):
    _, made = summary

    lines = list(made(too_late=Counter({"in the history": 2, "here": 1})).lines())

    assert any("3 payments came too late" in line and "1 of them were in time in the history" in line for line in lines)


def test_shares_of_a_list():
    assert [at_share([1, 2, 3, 4], share) for share in (0.5, 0.99, 0.0)] == [2, 4, 1]
    assert at_share([7], 0.5) == 7


def test_the_jobs_of_a_replay_are_the_orders_own(db, replay):
    stop = Event()
    run = replay(past("a", 0), speed=1.0, stop=stop)
    run.run(watch=lambda: Order.objects.exists() and stop.set())

    order = orders_of(run.name).get()
    assert Job.objects.get().key == order.key
    assert order.pay_by - order.created_at == timedelta(minutes=30)
