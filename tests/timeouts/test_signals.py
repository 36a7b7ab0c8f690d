"""The first layer: saves and deletes keep the jobs true, in the caller's transaction."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core import serializers
from django.db import connection, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext

from delaytasks import Calendar, timeout
from delaytasks.timeouts import declarations

from .app.models import CourierOrder, Customer, Invoice, Line, OpenOrder, Order, RushOrder
from .conftest import HALF_HOUR, START, live

ALWAYS = Calendar("always open", tz="UTC", hours={"mon-sun": "00:00-24:00"}, editable=False)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("automatic", "db_clock")]


@pytest.fixture
def close() -> Callable[..., None]:
    def close(model: Any = Order, **options: Any) -> None:
        given = {"on": "created_at", "after": "window", "while_": Q(state="open")} | options
        timeout(model, topic="declared.close", **given)(lambda order, job: None)

    return close


def test_a_job_commits_and_rolls_back_with_the_row(close: Any) -> None:
    close()
    with transaction.atomic():
        order = Order.objects.create(created_at=START)
        assert live() == {f"order:{order.pk}": START + HALF_HOUR}
        transaction.set_rollback(True)
    assert live() == {}
    with transaction.atomic():
        order = Order.objects.create(created_at=START)
    assert list(live()) == [f"order:{order.pk}"]


def test_each_way_to_save_and_delete(close: Any) -> None:
    close()
    order = Order.objects.create(created_at=START)
    order.window = F("window") * 2
    order.save()
    assert list(live().values()) == [START + 2 * HALF_HOUR]
    order.refresh_from_db()
    order.state = "paid"
    order.save()
    assert live() == {}
    Order.objects.update_or_create(pk=order.pk, defaults={"state": "open", "window": timedelta(0)})
    assert list(live().values()) == [START]
    order.delete()
    assert live() == {}
    Order.objects.bulk_create([Order(created_at=START)])
    assert live() == {}  # reconciliation makes it


def test_a_save_of_unwatched_fields_costs_nothing(close: Any, django_assert_num_queries: Any) -> None:
    close()
    order = Order.objects.create(created_at=START)
    with transaction.atomic(), django_assert_num_queries(1):
        order.save(update_fields=["note"])
    with transaction.atomic(), django_assert_num_queries(2):
        order.save()
    order.state = "paid"
    order.save(update_fields=["state"])
    assert live() == {}


@pytest.mark.parametrize(("calendar", "more"), [(None, 0), (ALWAYS, 1)])
def test_a_save_costs_the_statements_that_the_howto_says(
    close: Any, django_assert_num_queries: Any, calendar: Any, more: int
) -> None:
    close(calendar=calendar)
    order = Order(created_at=START)
    changes: list[dict[str, Any]] = [{}, {}, {"created_at": START + HALF_HOUR}, {"state": "paid"}]  # made, same, moved
    for changed, cost in zip(changes, (2, 1, 3, 3), strict=True):
        for name, value in changed.items():
            setattr(order, name, value)
        with transaction.atomic(), django_assert_num_queries(1 + cost + more):
            order.save()
    with CaptureQueriesContext(connection) as queries:
        order.save()
    sent = [query["sql"].split()[0] for query in queries]
    assert sent == ["UPDATE", "BEGIN", "SELECT", *["SELECT"] * more, "WITH", "COMMIT"]


@pytest.mark.on_both
def test_a_generated_field_is_watched_by_the_fields_that_it_is_computed_from(close: Any) -> None:
    close(Invoice, on="sent_at", after=HALF_HOUR, while_=Q(left__gt=0))
    for change in ({"paid": 10}, {"held": True}):
        invoice = Invoice.objects.create(sent_at=START)
        assert list(live()) == [f"invoice:{invoice.pk}"]
        for name, value in change.items():
            setattr(invoice, name, value)
        invoice.save(update_fields=change)
        assert live() == {}


def test_a_foreign_key_is_watched_by_both_of_its_names(close: Any) -> None:
    close(while_=Q(customer__active=True))
    order = Order.objects.create(created_at=START)
    order.customer = Customer.objects.create()
    order.save(update_fields=["customer_id"])
    assert len(live()) == 1
    order.customer = None
    order.save(update_fields=["customer"])
    assert live() == {}


@pytest.mark.parametrize("declared", [Order, OpenOrder, RushOrder, CourierOrder])
@pytest.mark.parametrize("saved", [Order, OpenOrder, RushOrder, CourierOrder])
def test_proxies_parents_and_children_send_signals_of_their_own(close: Any, declared: Any, saved: Any) -> None:
    close(declared)
    CourierOrder.objects.create(created_at=START)
    key = declared._meta.concrete_model._meta.model_name
    assert [each.partition(":")[0] for each in live()] == [key]
    row = saved._base_manager.get()
    row.state = "paid"
    row.save()
    assert live() == {}
    row.state = "open"
    row.save()
    assert len(live()) == 1
    row.delete()
    assert live() == {}


def test_fixtures_are_left_to_reconciliation(close: Any) -> None:
    close()
    text = serializers.serialize("json", [Order(pk=9, created_at=START)])
    for loaded in serializers.deserialize("json", text):
        loaded.save()
    assert (Order.objects.count(), live()) == (1, {})


def test_a_cascade_cancels_the_jobs(close: Any) -> None:
    close()
    customer = Customer.objects.create()
    Order.objects.create(created_at=START, customer=customer)
    customer.delete()
    assert live() == {}


def test_other_models_are_deleted_as_fast_as_before(close: Any) -> None:
    from django.db.models.deletion import Collector

    close()
    order = Order.objects.create(created_at=START)
    Line.objects.create(order=order)
    assert Collector(using="default").can_fast_delete(Line.objects.all())


def test_other_models_are_saved_without_a_query_more(close: Any, django_assert_num_queries: Any) -> None:
    close()
    with transaction.atomic(), django_assert_num_queries(1):
        Customer.objects.create()
    assert declarations.affected_by(Customer) == ()


def test_historical_models_of_migrations_are_ignored(close: Any) -> None:
    from django.apps import apps
    from django.db.migrations.state import ProjectState

    close()
    historical = ProjectState.from_apps(apps).apps.get_model("declared", "Order")
    historical(created_at=START).save()
    assert live() == {}
    with CaptureQueriesContext(connection) as queries:
        historical(created_at=START).save()
    assert len([query for query in queries if "delaytasks" in query["sql"]]) == 0


@pytest.mark.only_on("postgresql")
def test_in_autocommit_the_row_is_locked_while_its_job_is_made(close: Any, in_another_session: Any) -> None:
    """A payment that is not committed yet, and found no job to cancel, must not end with a live one."""
    from concurrent.futures import ThreadPoolExecutor

    from delaytasks.models import Job
    from delaytasks.timeouts import receivers

    close()
    order = Order.objects.create(created_at=START)
    Job.objects.all().delete()
    commit = in_another_session(f"UPDATE declared_order SET state = 'paid' WHERE id = {order.pk}")

    def receive() -> None:
        try:
            receivers.on_save(
                sender=Order, instance=order, created=True, raw=False, using="default", update_fields=None
            )  # fmt: skip
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive)
        while not blocked():
            assert not received.done()
        commit()
        received.result()
    assert live() == {}


def blocked() -> bool:
    """Return whether a session waits for a lock."""

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize(
    "condition",
    [Q(note=Case(When(state="vip", then=Value("a vip's")), default=Value(""))), Q(customer__active=Q(state="open"))],
)
def test_a_field_of_a_condition_inside_an_expression_is_watched(close: Callable[..., None], condition: Q) -> None:
    close(while_=condition)
    order = Order.objects.create(created_at=START, customer=Customer.objects.create())
    assert len(live()) == 1
    order.state = "vip"
    order.save(update_fields=["state"])
    assert live() == {}


def test_a_signal_that_the_project_sends_itself_needs_only_what_its_receivers_read(close: Callable[..., None]) -> None:
    close()
    order = Order(pk=7, created_at=START)
    Order.objects.bulk_create([order])
    post_save.send(sender=Order, instance=order, created=True, using="default")
    assert list(live()) == ["order:7"]
