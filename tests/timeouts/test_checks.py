"""Bad input: what can be seen at once raises BadInput, what needs the models is a system check with an id."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.postgres.functions import TransactionNow
from django.db import connection, models
from django.db.models import Case, Exists, F, Func, OuterRef, Q, Value, When
from django.db.models.fields.json import DataContains
from django.db.models.functions import Lower, Now, TruncDay
from django.db.models.lookups import Exact, GreaterThan, Regex
from django.test.utils import CaptureQueriesContext
from django.utils.translation import gettext_lazy

from delaytasks import handlers, timeout
from delaytasks.calendars import days
from delaytasks.exceptions import BadInput
from delaytasks.timeouts import checks, declarations

from .app.models import Customer, DatedPlan, Device, Line, Order, Pair, RushOrder
from .conftest import HALF_HOUR, START


class Abstract(models.Model):
    at = models.DateTimeField()

    class Meta:
        abstract = True
        app_label = "declared"


class Legacy(models.Model):
    at = models.DateTimeField()

    class Meta:
        managed = False
        app_label = "declared"


def declare(model: Any, **options: Any) -> None:
    timeout(model, topic="declared.close", **({"on": "created_at"} | options))(lambda row, job: None)


ALL = Q(pk__gt=0)
NAIVE = START.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("model", "options", "hint"),
    [
        (Order, {"on": "paid_at"}, "declared.Order has 'created_at'."),
        (Order, {"after": "wait"}, "declared.Order has 'window'."),
        (Customer, {"on": "order"}, "declared.Customer has none."),
        (Customer, {"on": "order", "after": "wait"}, "declared.Customer has none."),
    ],
)
def test_the_hint_names_the_fields_that_can_be_used(model: Any, options: Any, hint: str) -> None:
    declare(model, **options)
    assert any(str(error.hint).endswith(hint) for error in checks.check_declarations())


@pytest.mark.parametrize(
    ("model", "options", "id_", "words"),
    [
        (Pair, {"on": "at"}, "E040", "without a single primary key"),
        (Abstract, {"on": "at"}, "E040", "abstract"),
        (Legacy, {"on": "at"}, "E040", "not managed"),
        (Order, {"on": "paid_at"}, "E041", "does not exist"),
        (DatedPlan, {"on": "day"}, "E041", "is a DateField"),
        (Customer, {"on": "order"}, "E041", "does not exist"),
        (Order, {"after": "wait"}, "E042", "does not exist"),
        (Order, {"before": "state"}, "E042", "is a CharField"),
        (Order, {"after": timedelta.max}, "E042", "after is 999,999,999 days; at most 3,660"),
        (Order, {"before": timedelta(days=3_661)}, "E042", "before is 3,661 days"),
        (Device, {"on": "seen_at", "while_": Q(badge__isnull=True)}, "E043", "relation that is no column of its model"),
        (Order, {"while_": Q(paid=True)}, "E043", "Cannot resolve keyword 'paid'"),
        (Order, {"while_": Q(lines__id=1)}, "E043", "relation that is no column of its model"),
        (Order, {"while_": ALL | ~Q(customer__order__state="x")}, "E043", "relation that is no column of its model"),
        (Order, {"while_": Q(created_at__lt="yesterday")}, "E043", "“yesterday” value"),
        (Order, {"while_": Q(customer__active="maybe")}, "E043", "“maybe” value"),
        (Order, {"while_": Q(note="x") | ~Q(window="soon")}, "E043", "“soon” value"),
        (Order, {"while_": Q(window__in=[HALF_HOUR, -1])}, "E043", "-1 is not a valid value of DurationField"),
        (Order, {"while_": Q(note="a\0b")}, "E043", "cannot store a text with a NUL character, 'a\\x00b'."),
        (Order, {"while_": ~Q(note__in=["a", "\0"])}, "E043", "NUL character"),
        (Order, {"while_": Q(note=Lower(Value("\0")))}, "E043", "NUL character"),
        (Order, {"while_": Q(customer__in=5)}, "E043", "not iterable"),
        (Order, {"while_": Q(Case(When(window=-1, then=True)))}, "E043", "-1 is not a valid value of DurationField"),
        (Order, {"while_": Q(created_at__lt=Now())}, "E044", "Now"),
        (Order, {"while_": Q(created_at__lt=Now() - Value(HALF_HOUR))}, "E044", "Now"),
        (Order, {"while_": Q(created_at__lt=TransactionNow())}, "E044", "TransactionNow"),
        (Order, {"while_": Q(created_at__lt=Func(function="clock_timestamp"))}, "E044", "Func"),
        (Order, {"while_": Q(created_at__lt=Func(template="CURRENT_TIMESTAMP"))}, "E044", "Func"),
        (Order, {"while_": Q(note=Lower(Func(function="now")))}, "E044", "Func"),
        (Order, {"while_": Q(note=Func(template="date('now')"))}, "E044", "Func"),
        (Order, {"while_": Q(created_at__date="2030-01-01")}, "E044", "created_at__date"),
        (RushOrder, {"while_": Q(created_at__hour__gte=9)}, "E044", "created_at__hour__gte"),
        (Order, {"while_": Q(created_at=TruncDay("created_at"))}, "E044", "TruncDay"),
        (Order, {"while_": Q(Exists(Line.objects.filter(order=OuterRef("pk"))))}, "E044", "Exists"),
        (Order, {"while_": Q(customer__in=Customer.objects.filter(active=True))}, "E044", "'QuerySet', whose value"),
        (Order, {"while_": ~Q(customer=Customer.objects.all().query) | ALL}, "E044", "'Query', whose value"),
        (Order, {"while_": Q(customer__in=Customer.objects.raw("SELECT 1"))}, "E044", "'RawQuerySet', whose value"),
        (Order, {"while_": Q(note=gettext_lazy("paid"))}, "E044", "lazy text, whose value depends on the"),
        (Order, {"while_": ~Q(note__in=["x", gettext_lazy("paid")])}, "E044", "lazy text"),
        (Order, {"while_": Q(note=Lower(Value(gettext_lazy("paid"))))}, "E044", "lazy text"),
        (Order, {"while_": Q(note=object())}, "E044", "'object', which has another text in each process"),
        (Order, {"while_": Q(note__in=["x", object()])}, "E044", "'object', which has another text"),
        (Order, {"while_": Q(note=Lower(Value(object())))}, "E044", "'object', which has another text"),
        (Order, {"while_": Q(customer__in=(each for each in [1]))}, "E044", "'generator', which has another text"),
        (Order, {"while_": Q(created_at__lt=NAIVE)}, "E044", "which has no time zone"),
        (Order, {"while_": Q(created_at__range=[START, "2030-02-01 00:00"])}, "E044", "'2030-02-01 00:00', which has"),
        (Order, {"while_": Q(created_at=Value(NAIVE))}, "E044", "which has no time zone"),
        (Order, {"while_": Q(created_at__gt=START.date())}, "E044", "which has no time zone"),
        (Order, {"while_": Q(Case(When(created_at__lt=NAIVE, then=True)))}, "E044", "which has no time zone"),
        (Order, {"while_": Q(customer__active=Q(created_at__lt=NAIVE))}, "E044", "which has no time zone"),
        (Order, {"while_": Q(Case(When(note__in={"x", "y"}, then=True)))}, "E044", "'set', which has another text"),
        (Order, {"while_": Q(GreaterThan(F("created_at"), NAIVE))}, "E044", "which has no time zone"),
        (Order, {"while_": Q(Exact(F("note"), "a\0b"))}, "E043", "NUL character"),
        (Order, {"while_": Q(Exact(F("note"), gettext_lazy("paid")))}, "E044", "lazy text"),
        (Order, {"while_": Q(note=lambda: "x")}, "E044", "'function', which has another text"),
    ],
)  # fmt: skip
@pytest.mark.django_db
@pytest.mark.usefixtures("automatic")
def test_a_field_or_condition_that_cannot_be_used_is_a_check(
    model: Any, options: dict[str, Any], id_: str, words: str
) -> None:
    declare(model, **options)
    with CaptureQueriesContext(connection) as queries:
        (error,) = checks.check_declarations()
    assert not queries
    assert (error.id, words in error.msg, bool(error.hint)) == (f"delaytasks.{id_}", True, True), error
    assert "declared.close" not in {each.topic for each in declarations.declarations()}
    Order.objects.create(created_at=START)  # and it does nothing
    Customer.objects.create()  # nor does it disturb other models


@pytest.mark.on_both
@pytest.mark.django_db
@pytest.mark.parametrize(
    "condition", [Q(note__regex="a("), ~Q(Case(When(note__iregex="a(", then=True))), Q(Regex(F("note"), "a("))]
)
def test_a_regular_expression_that_the_database_cannot_read_is_a_check(condition: Q) -> None:
    declare(Order, while_=condition)
    (error,) = [*checks.check_declarations(), *checks.check_patterns(databases=["default"])]
    assert (error.id, "a(" in error.msg) == ("delaytasks.E043", True), error


@pytest.mark.only_on("sqlite")
@pytest.mark.django_db
@pytest.mark.usefixtures("automatic")
def test_a_lookup_that_sqlite_does_not_have_is_a_check() -> None:
    stored = Value({"vip": True}, output_field=models.JSONField())
    declare(Order, while_=Q(DataContains(stored, {"vip": True})))
    (error,) = checks.check_declarations()
    assert (error.id, "contains lookup is not supported" in error.msg) == ("delaytasks.E043", True), error
    Order.objects.create(created_at=START)  # is not disturbed


@pytest.mark.parametrize(
    "options",
    [{}, {"after": "window"}, {"before": HALF_HOUR}, {"while_": Q(customer__active=True, note__startswith="x")},
     {"while_": Q(created_at__lt=START) & ~Q(note=F("state"))}, {"while_": Q(pk__gt=1) | Q(customer=None)},
     {"while_": Q(pk__in=[]) | Q(window__range=[HALF_HOUR, 2 * HALF_HOUR])}, {"while_": Q(window__gt=F("window"))},
     {"while_": Q(pk__in=[])}, {"while_": Q(note=" at 0x7f0000000000>", customer=Customer(pk=1))},
     {"while_": Q(created_at__lt=datetime.now(UTC))}, {"while_": Q(state__in={"open", "paid"})},
     {"while_": Q(created_at__gte="2030-01-01T00:00Z", customer__in=[1, 2], customer_id__isnull=False)}],
)  # fmt: skip
def test_what_can_be_used_has_no_check(options: dict[str, Any]) -> None:
    declare(Order, **options)
    assert checks.check_declarations() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"after": -HALF_HOUR}, "after is negative"),
        ({"before": -HALF_HOUR}, "before is negative"),
        ({"after": HALF_HOUR, "before": HALF_HOUR}, "both given"),
        ({"after": 30}, "after is 30; give a timedelta"),
        ({"after": days(2)}, "give the calendar="),
        ({"if_past": "ignore"}, "if_past is 'ignore'"),
        ({"if_past": -timedelta(1)}, "if_past"),
        ({"while_": {"state": "open"}}, "give a Q"),
        ({"on": None}, "name of a DateTimeField"),
        ({"calendar": "office"}, "give a Calendar"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        declare(Order, **options)
    assert handlers.find("declared.close") is None


def test_a_model_must_be_a_model() -> None:
    with pytest.raises(BadInput, match="give a model class"):
        declare("declared.Order")


def test_two_timeouts_with_one_topic_are_a_check(monkeypatch: Any) -> None:
    from delaytasks.checks import check_clashes

    monkeypatch.setattr(handlers, "clashes", [])
    declare(Order)

    def another(row: Any, job: Any) -> None: ...

    timeout(RushOrder, on="created_at", topic="declared.close")(another)
    assert [each.id for each in check_clashes()] == ["delaytasks.E002"]
    assert declarations.find("declared.close").model is Order  # type: ignore[union-attr]


def test_a_model_of_another_database_is_a_check(monkeypatch: Any, settings: Any) -> None:
    declare(Order, using="other")
    (error,) = checks.check_databases()
    assert error.id == "delaytasks.E045"
    assert "'other'" in error.msg
    assert error.hint.startswith("using='other' is no database of the project; DATABASES has default")


def test_the_default_topic_names_app_model_and_function() -> None:
    @timeout(Order, on="created_at")
    def close_unpaid(order: Order, job: Any) -> str:
        """Closes."""
        return order.state

    assert (close_unpaid.topic, close_unpaid.__doc__) == ("declared.order.close_unpaid", "Closes.")
    assert close_unpaid(Order(state="x"), None) == "x"  # called like the function
    handler = handlers.find("declared.order.close_unpaid")
    assert handler is not None
    assert handler.subject == "declared.order"
    assert handler.name.endswith("close_unpaid")


def test_the_options_of_the_handler_go_through() -> None:
    timeout(Order, on="created_at", topic="declared.close", ttr=7, max_attempts=2, queue="slow", concurrency=3,
            atomic=False, expires=HALF_HOUR)(lambda order, job: None)  # fmt: skip
    handler = handlers.find("declared.close")
    assert handler is not None
    assert (handler.ttr_ms, handler.max_attempts, handler.queue, handler.concurrency, handler.atomic) == (
        7000, 2, "slow", 3, False
    )  # fmt: skip
    assert handler.expires_ms == 1_800_000


@pytest.mark.parametrize("check", [checks.check_declarations, checks.check_databases, checks.check_applied])
def test_invalid_settings_break_no_check(settings: Any, db: None, check: Any) -> None:
    declare(Order)
    settings.DELAYTASKS = {"BUKETS": 4}
    assert check(databases=["default"]) == []
