"""The simulated month of `make pipeline-demo`: orders and jobs in chronological order, and planted faults."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from delaytasks import clock
from delaytasks.db import dialects
from delaytasks.models import Job, JobEvent
from delaytasks.pipeline.page import page
from delaytasks.states import State
from project.demo import __main__ as demo
from project.demo import faults, month
from project.shop.models import Order, Payment, Refund

ORDERS = 220


@pytest.fixture
def simulated_month(transactional_db: None, settings: Any) -> Iterator[month.Month]:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None, "TOPICS": {"review.ask": {"ttr": 30}}}
    with demo.gateway():
        simulation = month.Month(ORDERS, random.Random(7), lambda line: None)
        simulation.run()
        yield simulation


@pytest.mark.only_on("sqlite")
def test_a_month_leaves_consistent_rows_and_faults_change_them_as_described(simulated_month: month.Month) -> None:
    now = datetime.now(UTC)
    assert not dialects.is_fixed()
    assert abs(timezone.now() - now) < timedelta(minutes=1), "the virtual clock is removed"
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
    end = clock.from_ms(simulated_month.end_ms)
    assert not Job.objects.filter(ended_at=None, due_at__lt=end).exists(), "all due jobs ran"
    assert Refund.objects.exclude(state=Refund.State.PENDING).exists()
    assert JobEvent.objects.filter(outcome="failed").exists(), "the mail provider had an outage"

    planted = faults.plant(random.Random(7), 10)
    assert len({fault.key for fault in planted}) == len(planted) == 2 * len(faults.KINDS)
    for fault in planted:
        number = int(fault.key.removeprefix("order:"))
        jobs = Job.objects.filter(topic="order.close", key=fault.key)
        assert jobs.exists() == (fault.audit_class != "missing")
        assert Order.objects.filter(pk=number).exists() == (fault.audit_class != "orphan")


def test_the_demo_refuses_an_invalid_number_of_orders(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for invalid in ("0", "many", "199", "-1"):
        monkeypatch.setenv("ORDERS", invalid)
        assert demo.main() == 1
        assert f"ORDERS={invalid} is not valid: use a whole number of at least 200." in capsys.readouterr().err


def test_the_demo_succeeds_only_if_the_audit_finds_exactly_the_planted_faults(capsys: Any) -> None:
    planted = [faults.Fault("late", "order:1", ""), faults.Fault("missing", "order:2", "")]

    def exit_code(**found: list[str]) -> int:
        classes = {
            name: {"count": len(found.get(name, ())), "must_be_empty": name not in ("kept", "open"),
                   "samples": [{"key": key} for key in found.get(name, ())]}
            for name in ("late", "missing", "early", "kept", "open")
        }  # fmt: skip
        return demo.compare(planted, {"rules": [{"name": "r", "classes": classes}]}, Path("folder"), 1)

    assert exit_code(late=["order:1"], missing=["order:2"], kept=["order:3"]) == 0
    assert exit_code(late=["order:1"]) == 1
    assert exit_code(late=["order:1"], missing=["order:2"], early=["order:3"]) == 1
    assert exit_code(early=["order:1"], missing=["order:2"]) == 1
    output = capsys.readouterr().out
    assert "NOT FOUND" in output
    assert "NOT PLANTED" in output


def test_the_demo_joins_the_pages_of_report_and_audit_and_refuses_a_month_with_faults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    late = {"count": 0, "must_be_empty": True, "samples": []}
    fine = {"count": 3, "must_be_empty": False, "samples": []}
    answers = {
        "archive": {"pruned": 1, "events": 2, "partitions": 1}, "report": {"rows": 1, "herds": 0},
        "audit": {"rules": [{"name": "r", "classes": {"late": late, "kept": fine, "open": fine}}]},
    }  # fmt: skip
    for name in ("report", "audit"):
        answers[name]["page"] = str(tmp_path / f"{name}.txt")
        Path(answers[name]["page"]).write_text(page.document(name, [f"<h1>{name}</h1>"]))
    monkeypatch.setattr(demo, "manage", lambda name, *_, **__: answers[name])
    monkeypatch.setattr(month, "catch_up", lambda: None)

    demo.check_month("local[*]")
    assert demo.run_pipeline(tmp_path, "local[*]") == answers["audit"]
    text = (tmp_path / demo.PAGE).read_text()
    assert text.index("<h1>report</h1>") < text.index("<h1>audit</h1>")
    late |= {"count": 1, "samples": [{"key": "order:1"}]}
    with pytest.raises(demo.Failed, match=r"though none was planted yet: \[\('late', 'order:1'\)\]"):
        demo.check_month("local[*]")
