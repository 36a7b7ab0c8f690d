"""Subjects: what a job stores of the model instance that it is about, and what becomes of it."""

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection, models
from django.db.models import Model
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils.functional import SimpleLazyObject

from delaytasks import jobs_of, schedule, schedule_many
from delaytasks.db import transitions
from delaytasks.exceptions import BadInput, KeyIsLive
from delaytasks.jobs.subjects import to_subject
from delaytasks.models import Job
from project.shop.models import Customer, Product

HOUR = timedelta(hours=1)


@pytest.fixture
def product(db: None) -> Product:
    return Product.objects.create(name="lamp", price=Decimal(10), stock=3)


@pytest.fixture
def topics(stage: Any) -> None:
    for topic in ("lamp.dim", "lamp.sell"):
        stage.recorder(topic)


def test_a_job_stores_the_models_label_and_the_primary_key_as_text(topics: None, product: Product) -> None:
    job = schedule("lamp.dim", subject=product, delay=HOUR)
    stored = Job.objects.get(pk=job.pk)
    assert (stored.key, stored.subject_label, stored.subject_pk) == (
        f"product:{product.pk}", "shop.product", str(product.pk),
    )  # fmt: skip
    assert (job.subject_label, job.subject_pk, stored.body) == ("shop.product", str(product.pk), {})
    assert stored.subject == product


def test_a_job_without_subject_stores_nulls(topics: None) -> None:
    job = Job.objects.get(pk=schedule("lamp.dim", "lamp:1", delay=HOUR).pk)
    assert (job.subject_label, job.subject_pk, job.subject) == (None, None, None)


def test_a_key_given_beside_a_subject_is_used(topics: None, product: Product) -> None:
    assert schedule("lamp.dim", "the lamp", subject=product, delay=HOUR).key == "the lamp"


def test_schedule_many_takes_subjects(topics: None, product: Product) -> None:
    items = [{"topic": topic, "subject": product, "delay": 1} for topic in ("lamp.dim", "lamp.sell")]
    assert schedule_many([*items, {"topic": "lamp.dim", "key": "plain", "delay": 1}]).created == 3
    assert sorted(jobs_of(product).values_list("topic", "key")) == [
        ("lamp.dim", f"product:{product.pk}"), ("lamp.sell", f"product:{product.pk}"),
    ]  # fmt: skip
    with pytest.raises(BadInput, match="Item 0: subject is 'lamp'"):
        schedule_many([{"topic": "lamp.dim", "subject": "lamp", "delay": 1}])


def test_a_lazy_object_such_as_request_user_is_the_instance_that_it_stands_for(topics: None, product: Product) -> None:
    lazy = SimpleLazyObject(lambda: product)
    job = schedule("lamp.dim", subject=lazy, delay=HOUR)
    assert (job.key, job.subject) == (f"product:{product.pk}", product)
    assert list(jobs_of(lazy)) == [job]
    with pytest.raises(BadInput, match="give an instance of a model"):
        schedule("lamp.dim", subject=SimpleLazyObject(AnonymousUser), delay=HOUR)


def test_jobs_of_returns_live_and_ended_jobs_newest_first(stage: Any, topics: None, product: Product) -> None:
    other = Product.objects.create(name="chair", price=Decimal(1), stock=1)
    first = schedule("lamp.dim", subject=product, delay=0)
    stage.go()
    second = schedule("lamp.dim", subject=product, delay=HOUR)
    schedule("lamp.dim", subject=other, delay=HOUR)
    schedule("lamp.dim", f"product:{product.pk}:x", delay=HOUR)
    assert list(jobs_of(product)) == [second, first]
    assert [job.ended_at is None for job in jobs_of(product)] == [True, False]


def test_replace_sets_a_new_subject_and_keeps_the_old_one_without(topics: None, product: Product) -> None:
    other = Product.objects.create(name="chair", price=Decimal(1), stock=1)
    schedule("lamp.dim", "k", subject=product, delay=HOUR)
    assert schedule("lamp.dim", "k", delay=1, on_conflict="replace").subject == product
    assert schedule("lamp.dim", "k", subject=other, delay=1, on_conflict="replace").subject == other


def test_a_second_job_of_a_subject_is_a_conflict(topics: None, product: Product) -> None:
    schedule("lamp.dim", subject=product, delay=HOUR)
    with pytest.raises(KeyIsLive):
        schedule("lamp.dim", subject=product, delay=HOUR)


def test_a_handler_receives_the_subject(stage: Any, product: Product) -> None:
    seen: list[Any] = []
    stage.handler("lamp.dim")(lambda job: seen.append((job.subject, job.subject_label, job.subject_pk)))
    schedule("lamp.dim", subject=product, delay=0)
    stage.go()
    assert seen == [(product, "shop.product", str(product.pk))]


def test_the_job_of_a_deleted_subject_stays_and_its_subject_is_none(stage: Any, product: Product) -> None:
    seen: list[Any] = []
    stage.handler("lamp.dim")(lambda job: seen.append((job.subject, job.subject_pk)))
    pk = str(product.pk)
    schedule("lamp.dim", subject=product, delay=0)
    product.delete()
    stage.go()
    assert seen == [(None, pk)]


def test_a_claim_never_writes_the_subject(stage: Any, topics: None, product: Product) -> None:
    job = schedule("lamp.dim", subject=product, delay=0)
    with CaptureQueriesContext(connection) as queries:
        assert transitions.claim("default", "lamp.dim", [job.pk], "w")
    (claim,) = [q["sql"] for q in queries if "UPDATE delaytasks_job" in q["sql"]]
    written = claim.partition("SET")[2].partition("FROM")[0]
    assert "subject" not in written
    assert "state" in written


def test_a_subject_whose_model_is_gone_is_none(topics: None, product: Product) -> None:
    job = schedule("lamp.dim", subject=product, delay=HOUR)
    Job.objects.filter(pk=job.pk).update(subject_label="shop.gone")
    assert Job.objects.get(pk=job.pk).subject is None
    Job.objects.filter(pk=job.pk).update(subject_label="shop.product", subject_pk="not a number")
    assert Job.objects.get(pk=job.pk).subject is None


def test_jobs_of_uses_its_index(topics: None, product: Product) -> None:
    Job.objects.bulk_create(
        Job(topic="lamp.dim", key=f"k{n}", due_at="2030-01-01T00:00Z", ttr_ms=1, created_at="2030-01-01T00:00Z",
            subject_label="shop.product" if n % 100 == 0 else None, subject_pk=str(n) if n % 100 == 0 else None)
        for n in range(3000)
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delaytasks_job")
    product.pk = 100
    assert "delaytasks_job_subject" in jobs_of(product).explain()


# What is refused


@pytest.mark.parametrize("subject", ["order:1", 7, Product, object()])
def test_only_an_instance_of_a_model_is_a_subject(subject: Any) -> None:
    with pytest.raises(BadInput, match="give an instance of a model"):
        to_subject(subject)


def test_an_unsaved_and_a_deleted_instance_are_refused(topics: None, product: Product) -> None:
    product.delete()
    for instance in (Product(name="unsaved"), product):
        with pytest.raises(BadInput, match="never saved, or it was deleted"):
            schedule("lamp.dim", subject=instance, delay=HOUR)
        with pytest.raises(BadInput, match="never saved, or it was deleted"):
            jobs_of(instance)
    assert not Job.objects.exists()


@isolate_apps("project.shop")
def test_an_unsaved_instance_with_a_primary_key_is_refused() -> None:
    class Ticket(Model):
        id = models.UUIDField(primary_key=True, default=uuid4)

        class Meta:
            app_label = "shop"

    ticket = Ticket(id=UUID(int=7))
    with pytest.raises(BadInput, match="never saved"):
        to_subject(ticket, saved=True)
    ticket._state.adding = False
    assert to_subject(ticket, saved=True) == ("shop.ticket", "00000000-0000-0000-0000-000000000007")


@isolate_apps("project.shop")
def test_composite_primary_keys_are_refused() -> None:
    class Seat(Model):
        pk = models.CompositePrimaryKey("row", "number")
        row = models.IntegerField()
        number = models.IntegerField()

        class Meta:
            app_label = "shop"

    with pytest.raises(BadInput, match=r"shop\.seat, whose primary key is composite: use a key"):
        to_subject(Seat(row=1, number=2))


@isolate_apps("project.shop")
def test_a_primary_key_whose_text_cannot_be_read_is_refused() -> None:
    class Blob(Model):
        id = models.CharField(primary_key=True, max_length=400)

        class Meta:
            app_label = "shop"

    for pk in ("x" * 256, "", "a\0b"):
        with pytest.raises(BadInput, match="its text must have 1 to 255 characters"):
            to_subject(Blob(id=pk))


@isolate_apps("project.shop")
def test_the_subject_of_a_proxy_is_that_of_its_concrete_model() -> None:
    class Lamp(Model):
        class Meta:
            app_label = "shop"

    class RedLamp(Lamp):
        class Meta:
            app_label = "shop"
            proxy = True

    class Lantern(Lamp):
        class Meta:
            app_label = "shop"

    assert to_subject(RedLamp(pk=1)) == to_subject(Lamp(pk="1")) == ("shop.lamp", "1")
    assert to_subject(Lantern(pk=1)).label == "shop.lantern"
    assert to_subject(RedLamp(pk=1)).key == "lamp:1"


def test_the_due_time_is_limited_from_the_time_of_django(topics: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit follows timezone.now(), which tests replace."""
    from datetime import UTC, datetime

    from django.utils import timezone

    monkeypatch.setattr(timezone, "now", lambda: datetime(2060, 1, 1, tzinfo=UTC))
    assert schedule("lamp.dim", "k", due_at=datetime(2060, 1, 2, tzinfo=UTC)).due_at.year == 2060


def test_customers_are_subjects_too(topics: None) -> None:
    customer = Customer.objects.create(name="Ann", email="ann@shop.example")
    assert schedule("lamp.dim", subject=customer, delay=1).key == f"customer:{customer.pk}"
