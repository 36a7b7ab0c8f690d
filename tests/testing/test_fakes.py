"""running_job(): a handler is called directly, with a job that has no row."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from delaytasks import RunningJob, Snooze
from delaytasks.exceptions import BadBody, BadInput, BadTopic, LeaseLost, NaiveDatetime
from delaytasks.models import Job
from delaytasks.testing import Timeouts, running_job
from project.shop.models import Product
from tests.support.stage import effect, effects

Register = Callable[..., Any]


def test_it_has_what_a_handler_reads() -> None:
    product = Product(pk=7, name="lamp", price=Decimal(1), stock=1)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    job = running_job("lamp.dim", subject=product, body={"n": 1}, attempt=3, failures=2, due_at=at, ttr=5)
    assert isinstance(job, RunningJob)
    assert (job.topic, job.key, job.body, job.attempt, job.failures) == ("lamp.dim", "product:7", {"n": 1}, 3, 2)
    assert (job.subject, job.subject_label, job.subject_pk) == (product, "shop.product", "7")
    assert (job.due_at, job.ended) == (at, False)
    assert running_job("lamp.dim").key == "test"
    assert running_job("lamp.dim", "k").id != job.id


def test_its_body_is_as_json_stores_it() -> None:
    """A handler that relies on a tuple or on keys that are no text fails with a real job, and so it does here."""
    assert running_job("lamp.dim", body={7: (1, 2)}).body == {"7": [1, 2]}
    body = {"list": [1]}
    job = running_job("lamp.dim", body=body)
    job.body["list"].append(2)
    assert body == {"list": [1]}


def test_a_due_time_without_a_zone_is_refused_by_name() -> None:
    with pytest.raises(NaiveDatetime, match="give an aware datetime"):
        running_job("lamp.dim", due_at=datetime(2030, 1, 1))  # noqa: DTZ001


def test_no_database_is_used(register: Register) -> None:
    handle = register("lamp.dim", lambda job: Snooze(job.body["seconds"]), ttr=30)
    job = running_job(handle, body={"seconds": 60})
    assert handle(job) == Snooze(60)
    assert (job.deadline - job.due_at).total_seconds() == 30


def test_touch_moves_the_deadline(timeouts: Timeouts) -> None:
    job = running_job("lamp.dim", ttr=10)
    timeouts.travel_to(job.deadline)
    before = job.deadline
    job.touch()
    assert ((job.deadline - before).total_seconds(), job.touched) == (10, 1)


def test_finishing_is_a_transaction_and_ends_the_job(db: None) -> None:
    job = running_job("lamp.dim")
    with pytest.raises(ValueError, match="no"), job.finishing():
        effect("effect lost")
        raise ValueError("no")
    assert (job.ended, effects()) == (False, [])
    with job.finishing():
        effect("effect kept")
    assert (job.ended, effects()) == (True, ["effect kept"])
    with pytest.raises(LeaseLost), job.finishing():
        pass
    with pytest.raises(LeaseLost):
        job.touch()
    assert not Job.objects.exists()


def test_wrong_arguments_are_refused_as_by_schedule(register: Register) -> None:
    handle = register("lamp.dim", subject="shop.Order")
    for call, error in (
        (lambda: running_job("not a topic"), BadTopic),
        (lambda: running_job("lamp.dim", body=object()), BadBody),
        (lambda: running_job(handle, subject=Product(pk=1)), BadInput),
        (lambda: running_job(handle, subject=Product()), BadInput),
    ):
        with pytest.raises(error):
            call()
