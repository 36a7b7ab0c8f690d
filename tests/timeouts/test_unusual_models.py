"""Models whose __init__, managers, tables, classes or keys are not Django's usual ones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models, transaction
from django.db.models import Q

from delaytasks import timeout
from delaytasks.timeouts import reconcile
from delaytasks.timeouts.sync import sync
from tests.support.locks import somebody_waits
from tests.support.servers import wait_until

from .app.models import OpenOrder, Order, RushOrder
from .conftest import HALF_HOUR, START, live

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("automatic", "db_clock"),
    pytest.mark.on_both,
]


def close(model: Any, **options: Any) -> None:
    timeout(model, topic="declared.close", **options)(lambda row, job: None)


@contextmanager
def tables_of(*new: type[models.Model]) -> Iterator[None]:
    with connection.schema_editor() as editor:
        for model in new:
            editor.create_model(model)
    try:
        yield
    finally:
        new[-1]._base_manager.all().delete()
        with connection.schema_editor() as editor:
            for model in reversed(new):
                editor.delete_model(model)
        for model in new:
            del apps.all_models["declared"][model._meta.model_name]
        apps.clear_cache()


def test_a_model_may_remember_fields_in_its_init(monkeypatch: pytest.MonkeyPatch) -> None:
    """With deferred fields this would read the row from the database, again and again."""
    original = Order.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._was = (self.state, self.note)

    monkeypatch.setattr(Order, "__init__", init)
    close(Order, on="created_at", after=HALF_HOUR, while_=Q(state="open"))
    order = Order.objects.create(created_at=START)
    assert list(live()) == [f"order:{order.pk}"]
    order.state = "paid"
    order.save()
    assert live() == {}


def test_the_base_manager_may_follow_relations(monkeypatch: pytest.MonkeyPatch) -> None:
    class Related(models.Manager[Any]):
        def get_queryset(self) -> Any:
            return super().get_queryset().select_related("customer")

    manager = Related()
    manager.model = Order
    monkeypatch.setitem(Order._meta.__dict__, "base_manager", manager)
    assert Order._base_manager is manager
    close(Order, on="created_at", after=HALF_HOUR)
    order = Order.objects.create(created_at=START)
    assert list(live()) == [f"order:{order.pk}"]


@pytest.mark.parametrize("name", ["keys", "found", "desired"])
def test_a_table_may_have_the_name_of_a_part_of_the_engines_queries(name: str) -> None:
    meta = type("Meta", (), {"app_label": "declared", "db_table": name})
    fields = {"at": models.DateTimeField(null=True), "Meta": meta, "__module__": __name__}
    model: Any = type(f"Table{name}", (models.Model,), fields)
    with tables_of(model):
        close(model, on="at")
        model.objects.create(at=START)
        assert len(live()) == 1
        reconcile.reconcile("default")
        assert len(live()) == 1


def test_the_row_keeps_the_class_that_its_model_gives_it(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with django-polymorphic and django-typed-models: the class of an instance depends on its row."""

    def from_db(cls: Any, *args: Any) -> Any:
        row = super(Order, cls).from_db(*args)
        row.__class__ = OpenOrder
        return row

    monkeypatch.setattr(Order, "from_db", classmethod(from_db))
    called = []
    timeout(Order, on="created_at", topic="declared.close")(lambda order, job: called.append(type(order)))
    Order.objects.create(created_at=START)
    stage.go()
    assert called == [OpenOrder]


@pytest.mark.parametrize("key_of_its_own", ["middle", "leaf"])
def test_a_saved_parent_is_followed_to_a_child_with_another_primary_key(key_of_its_own: str) -> None:
    def fields(link: str, parent: Any, *, own: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "declared"})}
        if own:
            found["number"] = models.AutoField(primary_key=True)
            found[link] = models.OneToOneField(parent, models.CASCADE, parent_link=True)
        return found

    middle: Any = type("Middle", (Order,), fields("order_ptr", Order, own=key_of_its_own == "middle"))
    leaf: Any = type("Leaf", (middle,), fields("middle_ptr", middle, own=key_of_its_own == "leaf"))
    with tables_of(middle, leaf):
        Order.objects.create()
        close(leaf, on="created_at", while_=Q(state="open"))
        row = leaf.objects.create(created_at=START)
        assert row.id != row.pk
        assert len(live()) == 1
        parent = Order.objects.get(pk=row.id)
        parent.state = "paid"
        parent.save()
        assert live() == {}


@pytest.mark.only_on("postgresql")
def test_a_sync_and_a_save_of_a_child_do_not_wait_for_each_other(declare: Any) -> None:
    """A save changes the parent's table first, and then the child's."""
    rush = RushOrder.objects.create(created_at=START)
    declaration, errors = declare(RushOrder), []

    def other() -> None:
        try:
            sync(declaration, [rush.pk], using="default")
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=other)
    with transaction.atomic():
        Order.objects.filter(pk=rush.pk).update(note="x")
        thread.start()
        wait_until(somebody_waits, seconds=20, what="the sync")
        RushOrder.objects.filter(pk=rush.pk).update(level=2)
    thread.join(30)
    assert errors == []
