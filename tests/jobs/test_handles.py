"""@handler returns a handle: it is called like the function and has the verbs of its topic."""

import inspect
import pickle
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.apps import apps
from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils import timezone

from delaytasks import handlers, jobs_of
from delaytasks.checks import check_subject_models
from delaytasks.exceptions import BadInput, BadKey
from delaytasks.jobs import cancellation
from delaytasks.models import Job
from delaytasks.states import State
from project.shop.models import Customer, Payment, Product
from project.shop.timeouts import close_unpaid_order

HOUR = timedelta(hours=1)


@pytest.fixture
def product(stage: Any) -> Product:
    return Product.objects.create(name="lamp", price=Decimal(10), stock=3)


@pytest.fixture
def dim(stage: Any) -> Any:
    return stage.handler("lamp.dim")(lambda job: None)


def state_of(job: Job) -> State:
    return State(Job.objects.get(pk=job.pk).state)


def test_a_handle_schedules_and_cancels_by_instance(dim: Any, product: Product) -> None:
    job = dim.schedule(product, delay=HOUR)
    assert (job.topic, job.key, job.body, job.subject) == ("lamp.dim", f"product:{product.pk}", {}, product)
    assert dim.cancel(product) == "cancelled"
    assert state_of(job) is State.CANCELLED


def test_a_handle_schedules_and_cancels_by_key(dim: Any, product: Product) -> None:
    job = dim.schedule("lamp:1", delay=HOUR)
    assert (job.key, job.subject) == ("lamp:1", None)
    assert dim.cancel("lamp:1") == "cancelled"
    dim.schedule(product, delay=HOUR)
    assert dim.cancel(f"product:{product.pk}") == "cancelled"


def test_a_handle_takes_another_key_for_an_instance(dim: Any, product: Product) -> None:
    dim.schedule(product, key="again", delay=HOUR)
    assert [job.key for job in jobs_of(product)] == ["again"]
    assert dim.cancel(product) == "unknown"
    assert dim.cancel(product, key="again") == "cancelled"
    with pytest.raises(BadInput, match="two keys"):
        dim.schedule("one", key="two", delay=HOUR)


def test_a_handle_reschedules_and_makes_ready(stage: Any, product: Product, db_clock: Any) -> None:
    keys: list[str] = []
    dim = stage.handler("lamp.dim")(lambda job: keys.append(job.key))
    job = dim.schedule(product, delay=HOUR, body={"n": 1}, ttr=5, on_conflict="keep", by="ann")
    assert dim.reschedule(product, delay=2 * HOUR).due_at - job.due_at == HOUR
    dim.run_now(product)
    stage.go()
    assert keys == [f"product:{product.pk}"]


def test_a_handle_is_called_like_the_function_and_looks_like_it() -> None:
    def dim(job: Any, strength: int = 3) -> int:
        """Dim the lamp."""
        return strength + int(job)

    handle = handlers.handler("lamp.called")(dim)  # type: ignore[type-var]
    try:
        assert (handle(1), handle(1, strength=1)) == (4, 2)
        assert (handle.__name__, handle.__doc__, handle.__wrapped__) == ("dim", "Dim the lamp.", dim)
        assert inspect.signature(handle) == inspect.signature(dim)
        assert handlers.find("lamp.called").function is dim  # type: ignore[union-attr]
        assert "handler of lamp.called" in repr(handle)
    finally:
        handlers.unregister("lamp.called")


def test_one_function_may_handle_two_topics_with_a_handle_each(stage: Any, product: Product) -> None:
    first = stage.handler("lamp.one")(lambda job: None)
    second = stage.handler("lamp.two")(first)
    assert first.function is second.function
    first.schedule(product, delay=HOUR)
    second.schedule(product, delay=HOUR)
    assert {job.topic for job in jobs_of(product)} == {"lamp.one", "lamp.two"}


def test_a_handle_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(close_unpaid_order)) is close_unpaid_order


def test_a_handle_refuses_what_is_neither_an_instance_nor_a_key(dim: Any) -> None:
    with pytest.raises(BadInput, match="give an instance of a model"):
        dim.cancel(1042)
    with pytest.raises(BadInput, match="give an instance of a model"):
        dim.schedule(1042, delay=HOUR)
    with pytest.raises(BadInput):
        dim.cancel(Product(name="unsaved"))
    with pytest.raises(BadKey):
        dim.schedule("", delay=HOUR)


# The handler's option subject


@pytest.mark.parametrize("subject", [Product, "shop.Product", "shop.product"])
def test_subjects_of_another_model_are_refused(stage: Any, product: Product, subject: Any) -> None:
    dim = stage.handler("lamp.dim", subject=subject)(lambda job: None)
    customer = Customer.objects.create(name="Ann", email="ann@shop.example")
    for call in (dim.cancel, lambda each: dim.schedule(each, delay=HOUR)):
        with pytest.raises(
            BadInput, match=r"subject is a shop\.customer, but jobs of 'lamp\.dim' are about a shop\.product"
        ):
            call(customer)
    dim.schedule(product, delay=HOUR)
    dim.schedule("a key", delay=HOUR)


@pytest.mark.parametrize("options", [
    {"subject": "Product"}, {"subject": 3}, {"on_subject_delete": "cancel"},
    {"subject": "shop.Product", "on_subject_delete": "ignore"},
])  # fmt: skip
def test_wrong_options_are_refused_when_the_handler_is_defined(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="subject"):
        handlers.handler("lamp.wrong", **options)


def test_a_subject_that_is_no_model_is_a_system_check(stage: Any) -> None:
    assert check_subject_models() == []
    stage.handler("lamp.dim", subject="shop.Lamp", on_subject_delete="cancel")(lambda job: None)
    (error,) = check_subject_models()
    assert (error.id, "'shop.lamp'" in error.msg) == ("delaytasks.E020", True)


# on_subject_delete


def keep_on_delete(topic: str) -> None:
    for model in apps.get_models():
        cancellation.post_delete.disconnect(sender=model, dispatch_uid=f"delaytasks.subject.{topic}")


@pytest.fixture
def cancelling(stage: Any) -> Any:
    yield stage.handler("lamp.dim", subject="shop.Product", on_subject_delete="cancel")(lambda job: None)
    keep_on_delete("lamp.dim")


def test_a_deleted_subject_leaves_its_jobs_by_default(dim: Any, product: Product) -> None:
    job = dim.schedule(product, delay=HOUR)
    product.delete()
    assert state_of(job) is State.DELAYED


def test_on_subject_delete_cancels_the_jobs_in_the_same_transaction(
    stage: Any, cancelling: Any, product: Product
) -> None:
    other = stage.handler("lamp.sell")(lambda job: None)
    job, second = cancelling.schedule(product, delay=HOUR), cancelling.schedule(product, key="second", delay=HOUR)
    kept = other.schedule(product, delay=HOUR)
    with transaction.atomic():
        pk = product.pk
        product.delete()
        assert state_of(job) is State.CANCELLED
        transaction.set_rollback(True)
    assert state_of(job) is State.DELAYED
    Product.objects.filter(pk=pk).delete()
    assert [state_of(each) for each in (job, second, kept)] == [State.CANCELLED, State.CANCELLED, State.DELAYED]


def test_a_row_that_no_job_can_be_about_is_deleted(stage: Any) -> None:
    stage.handler("lamp.dim", subject="sessions.Session", on_subject_delete="cancel")(lambda job: None)
    session = Session.objects.create(session_key="", expire_date=timezone.now())
    try:
        session.delete()
    finally:
        keep_on_delete("lamp.dim")
    assert not Session.objects.exists()


def test_on_subject_delete_leaves_a_running_job(stage: Any, cancelling: Any, product: Product) -> None:
    job = cancelling.schedule(product, delay=0)
    stage.take("lamp.dim")
    product.delete()
    assert state_of(job) is State.RESERVED


def test_only_models_of_cancelling_handlers_lose_fast_deletes(cancelling: Any) -> None:
    has_receiver = cancellation.post_delete.has_listeners
    assert (has_receiver(Product), has_receiver(Payment)) == (True, False)


def test_handlers_that_are_defined_before_the_models_are_loaded_are_connected_later(
    stage: Any, product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.apps import apps

    monkeypatch.setattr(apps, "models_ready", False)
    dim = stage.handler("lamp.dim", subject="shop.Product", on_subject_delete="cancel")(lambda job: None)
    monkeypatch.undo()
    assert not cancellation.post_delete.has_listeners(Product)
    cancellation.connect_deletes()
    try:
        job = dim.schedule(product, delay=HOUR)
        product.delete()
        assert state_of(job) is State.CANCELLED
    finally:
        keep_on_delete("lamp.dim")
