"""A subject in one database, and its jobs in another."""

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction

from delaytasks import handlers
from delaytasks.models import Job
from delaytasks.states import State
from project.shop.models import Product
from tests.support.databases import SECOND

from .test_handles import keep_on_delete

pytestmark = [
    pytest.mark.only_on("sqlite"), pytest.mark.django_db(databases=["default", SECOND]),
    pytest.mark.usefixtures("second_database"),
]  # fmt: skip
TOPIC = "lamp.dim"


@pytest.fixture
def dim(settings: Any) -> Iterator[Any]:
    """A handle whose jobs are in the second database, as all jobs."""

    def db_for_write(model: Any, **hints: Any) -> str | None:
        return SECOND if model._meta.app_label == "delaytasks" else None

    settings.DATABASE_ROUTERS = [SimpleNamespace(db_for_read=db_for_write, db_for_write=db_for_write)]
    yield handlers.handler(TOPIC, subject=Product, on_subject_delete="cancel")(lambda job: None)
    keep_on_delete(TOPIC)
    handlers.unregister(TOPIC)


def test_deleting_a_subject_cancels_its_jobs_only_if_it_commits(
    dim: Any, django_capture_on_commit_callbacks: Any
) -> None:
    product = Product.objects.create(name="lamp", price=Decimal(10), stock=3)
    dim.schedule(product, delay=timedelta(hours=1))
    with transaction.atomic():
        Product.objects.filter(pk=product.pk).delete()
        transaction.set_rollback(True)
    assert Job.objects.get().state == State.DELAYED
    with django_capture_on_commit_callbacks(execute=True):
        product.delete()
    assert Job.objects.get().state == State.CANCELLED


@pytest.mark.parametrize("has_table", [True, False], ids=["of-the-routers-rows", "of-this-row"])
def test_jobs_in_the_routers_database_are_cancelled_unless_they_are_about_its_own_rows(
    dim: Any, settings: Any, django_capture_on_commit_callbacks: Any, has_table: bool
) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["default", SECOND]}
    settings.DATABASE_ROUTERS[0].allow_migrate = lambda db, app_label, **hints: app_label != "shop" or has_table
    product = Product.objects.create(name="lamp", price=Decimal(10), stock=3)
    dim.schedule(product, delay=timedelta(hours=1))
    dim.schedule(product, delay=timedelta(hours=1), using="default")
    with django_capture_on_commit_callbacks(execute=True):
        product.delete()
    assert Job.objects.using("default").get().state == State.CANCELLED
    assert Job.objects.using(SECOND).get().state == (State.DELAYED if has_table else State.CANCELLED)


def test_a_row_is_deleted_although_the_jobs_of_the_routers_database_are_not_run(dim: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["default"]}
    product = Product.objects.create(name="lamp", price=Decimal(10), stock=3)
    dim.schedule(product, delay=timedelta(hours=1), using="default")
    product.delete()
    assert Job.objects.using("default").get().state == State.CANCELLED
