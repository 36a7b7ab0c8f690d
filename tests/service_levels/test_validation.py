"""Arguments of sla() that cannot be meant are refused when the module is imported, with what to do."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from django.db.models import Exists, F, OuterRef, Q

from delaytasks import Calendar, handlers, sla
from delaytasks.calendars import days, hours, registry
from delaytasks.exceptions import BadInput
from delaytasks.service_levels.validation import implies
from delaytasks.timeouts.validation import problems
from tests.timeouts.app.models import Customer

from .conftest import MONDAY


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warn": [0.5, 1.5]}, "warn has 1.5; a warning is a part of the target between 0 and 1, such as 0.9."),
        ({"warn": [0]}, "warn has 0; a warning is a part"),
        ({"warn": [1]}, "The breach itself, at 1, needs no entry."),
        ({"warn": [float("nan")]}, "warn has nan"),
        ({"warn": 0.5}, "give a list of parts of the target, such as [0.5, 0.9]."),
        ({"warn": "50%"}, "give a list of parts"),
        ({"warn": [0.5, 0.5]}, "give up to 20 different parts"),
        ({"target": 8}, "target is 8; give a timedelta above 0, such as hours(8)."),
        ({"target": timedelta(0)}, "give a timedelta above 0"),
        ({"target": days(2)}, "target is a number of working days, which have no length; give open time: hours(8)."),
        ({"target": hours(60_000)}, "is 60,000 hours, but the calendar"),
        ({"target": timedelta(days=3_661), "calendar": None}, "is 3,661 days; at most 3,660, ten years, are possible"),
        ({"target": timedelta.max, "calendar": None}, "ten years"),
        ({"target": timedelta.max}, "of open time within its horizon of 20 years"),
        ({"calendar": "office"}, "calendar is 'office'; give a Calendar, or None for elapsed time."),
        ({"stop": None}, "stop is None; give a Q, such as Q(state='answered')."),
        ({"pause": "wait"}, "pause is 'wait'; give a Q"),
        ({"stop": Q()}, "stop is an empty Q, which matches all rows: the clock would never run."),
        ({"pause": Q()}, "pause is an empty Q"),
        ({"pause": Q(state="done")}, "pause and stop overlap: each row that matches pause also matches stop"),
        ({"start": Q(state="done", note="new")}, "So the clock never starts. Correct one of the two conditions."),
        ({"pause": Q(state="wait"), "stop": Q(state__in=["wait", "done"])}, "So the clock never pauses."),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(declare: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        declare(**options)
    assert str(caught.value).startswith("sla(declared.Order): ")
    assert message in str(caught.value)


def test_a_model_is_asked_for() -> None:
    not_a_model: Any = "shop.Ticket"
    with pytest.raises(BadInput, match=r"model is 'shop.Ticket'; give a model class"):
        sla(not_a_model, target=hours(8), stop=Q(state="done"))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Q(state="wait"), Q(state="wait"), True),
        (~Q(state="wait"), ~Q(state="wait"), True),
        (Q(state="wait", note="x"), Q(note="x"), True),
        (Q(state="wait") & Q(note__in=["x"]), Q(note__in=["x", "y"]), True),
        (Q(state__exact="wait"), Q(state="wait"), True),
        (Q(state="wait"), Q(state="done"), False),
        (Q(state__in=["wait", "done"]), Q(state="done"), False),
        (Q(state="wait") | Q(state="done"), Q(state="done"), False),
        (Q(state="done"), ~Q(state="done"), False),
        (Q(state="done"), Q(state=F("note")), False),
        (Q(note="x"), Q(state="done"), False),
    ],
)
def test_a_condition_implies_another_only_if_that_is_certain(first: Q, second: Q, expected: bool) -> None:
    assert implies(first, second) is expected


@pytest.mark.parametrize("name", ["start", "pause", "stop"])
@pytest.mark.parametrize(
    ("condition", "check", "words"),
    [
        (Q(paid=True), "E043", "Cannot resolve keyword 'paid'"),
        (Q(lines__pk=1), "E043", "relation that is no column of its model"),
        (Q(created_at__lt="yesterday"), "E043", "“yesterday” value"),
        (Q(created_at__date="2026-01-01"), "E044", "created_at__date"),
        (Q(created_at__lt=MONDAY.replace(tzinfo=None)), "E044", "which has no time zone"),
        (Q(customer__in=Customer.objects.all()), "E044", "'QuerySet', whose value"),
        (Q(Exists(Customer.objects.filter(pk=OuterRef("customer")))), "E044", "Exists"),
    ],
)
def test_conditions_are_checked_as_those_of_timeouts(
    declare: Callable[..., Any], name: str, condition: Q, check: str, words: str
) -> None:
    """Each by itself: a condition that all rows match must not hide another. No query is executed."""
    level = declare(**{"start": ~Q(pk__in=[]), name: condition})
    (problem,) = problems(level.declaration)
    assert (problem.id, words in problem.message) == (f"delaytasks.{check}", True), problem
    assert f"'order.answer': its condition {name} " in problem.message


def test_the_fingerprint_depends_on_each_term(declare: Callable[..., Any], office: Calendar) -> None:
    variants: list[dict[str, Any]] = [
        {}, {"target": hours(7)}, {"warn": [0.5]}, {"pause": None}, {"start": None}, {"stop": Q(state="paid")},
        {"calendar": None},
    ]  # fmt: skip
    found = {declare_anew(declare, each).fingerprint for each in variants}
    assert len(found) == len(variants)
    assert declare_anew(declare, {}).fingerprint in found
    registry.unregister(office.name)
    later = Calendar(office.name, tz="Europe/Berlin", hours={"mon-fri": "10:00-18:00"})
    assert declare_anew(declare, {"calendar": later}).fingerprint not in found


def declare_anew(declare: Callable[..., Any], options: dict[str, Any]) -> Any:
    handlers.unregister("order.answer")
    return declare(**options).declaration


def test_closed_days_count_against_the_target(declare: Callable[..., Any]) -> None:
    """Without a query: the exceptions of staff are left out."""
    first = date.today()  # noqa: DTZ011  the calendar's zone is a day away at most
    closed = [first + timedelta(days=number) for number in range(-8, 20 * 366 + 8)]
    closed = [day for day in closed if day.weekday() == 0]
    mondays = Calendar("mondays", tz="UTC", hours={"mon": "09:00-17:00"}, holidays=closed[2:])
    for target in (hours(40), hours(8_000)):
        with pytest.raises(BadInput, match="closed on so many days that it has less"):
            declare(calendar=mondays, target=target)


def test_the_longest_open_time_counts_exceptions_of_the_definition(office: Calendar) -> None:
    assert office.max_open_time == hours(40) * (20 * 366 // 7 + 1)
