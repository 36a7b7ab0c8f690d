"""The month that `make pipeline-demo` lives: real orders and jobs in their order of time, and faults that are known."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from delaytasks import clock, dialect
from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from project.demo import __main__ as demo
from project.demo import faults, month
from project.shop.models import Order, Payment, Refund

ORDERS = 220


@pytest.fixture
def lived(transactional_db: None, settings: Any) -> Iterator[month.Month]:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None, "TOPICS": {"review.ask": {"ttr": 30}}}
    with demo.gateway():
        found = month.Month(ORDERS, random.Random(7), lambda said: None)
        found.live()
        yield found


@pytest.mark.only_on("sqlite")
def test_a_month_leaves_what_the_shop_would_have_left_and_faults_are_what_they_say(lived: month.Month) -> None:
    now = datetime.now(UTC)
    assert not dialect.fixed()
    assert abs(timezone.now() - now) < timedelta(minutes=1), "the clock is nobody's any more"
    assert Order.objects.count() == ORDERS

    first = Order.objects.order_by("created_at").first()
    assert first is not None
    assert now - timedelta(days=30, minutes=1) < first.created_at < now - timedelta(days=25)
    for order in Order.objects.filter(state=Order.State.CLOSED):
        job = Job.objects.get(topic="order.close", key=order.key)
        assert order.closed_at is not None
        assert timedelta(0) <= order.closed_at - order.pay_by < timedelta(seconds=15)
        assert (job.due_at, job.state) == (order.pay_by, State.FINISHED)
    for payment in Payment.objects.select_related("order"):
        assert payment.order.created_at <= payment.paid_at <= now
        assert Job.objects.get(topic="order.close", key=payment.order.key).state == State.CANCELLED
    assert all(event.late_ms is None or event.late_ms >= 0 for event in JobEvent.objects.all())
    end = clock.from_ms(lived.end_ms)
    assert not Job.objects.filter(ended_at=None, due_at__lt=end).exists(), "what fell due was run"
    assert Refund.objects.exclude(state=Refund.State.PENDING).exists()
    assert JobEvent.objects.filter(outcome="failed").exists(), "the mail provider was closed for a while"

    planted = faults.plant(random.Random(7), 10)
    assert len({each.key for each in planted}) == len(planted) == 2 * len(faults.KINDS)
    for each in planted:
        number = int(each.key.removeprefix("order:"))
        jobs = Job.objects.filter(topic="order.close", key=each.key)
        assert jobs.exists() == (each.found_as != "missing")
        assert Order.objects.filter(pk=number).exists() == (each.found_as != "orphan")


def test_the_demo_says_how_many_orders_it_can_do(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for wrong in ("0", "many", "199", "-1"):
        monkeypatch.setenv("ORDERS", wrong)
        assert demo.main() == 1
        assert f"ORDERS={wrong} is not a whole number from 200 on." in capsys.readouterr().err


def test_only_what_was_planted_and_all_of_it_makes_the_demo_succeed(capsys: Any) -> None:
    planted = [faults.Fault("late", "order:1", ""), faults.Fault("missing", "order:2", "")]

    def judged(**found: list[str]) -> int:
        classes = {
            name: {"count": len(found.get(name, ())), "must_be_empty": name not in ("kept", "open"),
                   "samples": [{"key": key} for key in found.get(name, ())]}
            for name in ("late", "missing", "early", "kept", "open")
        }  # fmt: skip
        return demo.judge(planted, {"page": "p"}, {"rules": [{"name": "r", "classes": classes}]}, 1)

    assert judged(late=["order:1"], missing=["order:2"], kept=["order:3"]) == 0
    assert judged(late=["order:1"]) == 1
    assert judged(late=["order:1"], missing=["order:2"], early=["order:3"]) == 1
    assert judged(early=["order:1"], missing=["order:2"]) == 1
    said = capsys.readouterr().out
    assert "NOT FOUND" in said
    assert "NOT PLANTED" in said
