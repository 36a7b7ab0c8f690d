"""Consumers over REST: reserve, finish, release, bury and touch."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest
from django.db import connections

from delaytasks.api.views.consumers import AttemptView
from delaytasks.jobs import control, schedule
from delaytasks.maintenance import guard
from delaytasks.models import Job, JobEvent
from tests.api.rest_client import Rest, at, events, fields

ENDS = ["finish", "release", "touch", "bury"]


@pytest.fixture
def held(rest: Rest) -> dict[str, Any]:
    """A reserved job, as returned by the reservation."""
    rest.make(body={"n": 1})
    return rest.take()[0]


def end(rest: Rest, job: dict[str, Any], how: str, status: int = 200, **more: Any) -> Any:
    return rest.post(f"jobs/{job['id']}/{how}/", {"attempt": job["attempt"], **more}, status)


# -- reserve ------------------------------------------------------------------------------------


def test_reserved_job_has_all_fields_that_a_consumer_needs(rest: Rest, db_clock: Any) -> None:
    made = rest.make(delay_seconds=10, body=[1], ttr_seconds=1.5)
    assert rest.take() == []
    db_clock.advance(ms=10_004)
    assert rest.take() == [
        {"id": made["id"], "topic": "mail.send", "key": "mail:1", "attempt": 1, "receipt": ANY, "failures": 0,
         "body": [1],
         "ttr_seconds": 1.5, "due_at": at(10), "deadline": at(11.504), "late_ms": 4}
    ]  # fmt: skip
    assert rest.take() == []
    assert rest.state(made["id"]) == "reserved"


def test_one_job_is_reserved_by_default_oldest_due_first(rest: Rest, db_clock: Any) -> None:
    for number in (3, 1, 2, 5, 4):
        rest.make(f"k{number}", delay_seconds=number)
    db_clock.advance(seconds=10)
    assert [job["key"] for job in rest.take()] == ["k1"]
    assert [job["key"] for job in rest.take(count=3)] == ["k2", "k3", "k4"]
    assert [job["key"] for job in rest.take(count=200)] == ["k5"]


@pytest.mark.parametrize(("consumer", "worker"), [(None, "php"), ("", "php"), ("mail 2/ü", "php/mail 2/ü")])
def test_job_stores_its_worker(rest: Rest, consumer: str | None, worker: str) -> None:
    job_id = rest.make()["id"]
    rest.take(**({} if consumer is None else {"consumer": consumer}))
    assert rest.get(f"jobs/{job_id}/")["worker"] == worker


def test_empty_reserve_request_reserves_one_job_without_waiting(rest: Rest) -> None:
    rest.make()
    assert len(rest.post("topics/mail.send/reserve/")["jobs"]) == 1
    assert rest.post("topics/mail.send/reserve/", b"") == {"jobs": []}


def test_waiting_request_gets_ready_jobs_at_once(rest: Rest) -> None:
    rest.make()
    assert len(rest.take(wait_seconds=60)) == 1


def test_wait_without_jobs_returns_an_empty_list(rest: Rest) -> None:
    assert rest.take(wait_seconds=0.05, count=5) == []


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ({"count": 0}, ["count"]),
        ({"count": 201}, ["count"]),
        ({"count": 1.5}, ["count"]),
        ({"count": "1"}, ["count"]),
        ({"count": True}, ["count"]),
        ({"count": None}, ["count"]),
        ({"count": 10**400}, ["count"]),
        ({"wait_seconds": -1}, ["wait_seconds"]),
        ({"wait_seconds": 60.001}, ["wait_seconds"]),
        ({"wait_seconds": False}, ["wait_seconds"]),
        ({"wait_seconds": "5"}, ["wait_seconds"]),
        ({"consumer": 5}, ["consumer"]),
        ({"consumer": "c" * 101}, ["consumer"]),
        ({"consumer": "a\u0000"}, ["consumer"]),
        ({"consumer": "a\n"}, ["consumer"]),
        ({"wait": 5, "n": 1}, ["n", "wait"]),
    ],
)
def test_invalid_field_is_named_and_nothing_is_reserved(rest: Rest, terms: dict[str, Any], named: list[str]) -> None:
    job_id = rest.make()["id"]
    assert sorted(fields(rest.post("topics/mail.send/reserve/", terms, 400))) == named
    assert rest.state(job_id) == "ready"


def test_setting_limits_the_number_of_reserved_jobs(rest: Rest, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BATCH_MAX": 2}
    for number in range(3):
        rest.make(f"k{number}")
    assert len(rest.take(count=3)) == 2


def test_float_without_fraction_is_accepted_as_integer(rest: Rest) -> None:
    rest.make()
    assert len(rest.take(count=1.0)) == 1


@pytest.mark.parametrize("rights", ["produce", "manage", "produce manage"])
def test_reserving_requires_the_right_to_consume(rest: Rest, rest_of: Callable[..., Rest], rights: str) -> None:
    job_id = rest.make()["id"]
    assert "consume" in rest_of(rights).post("topics/mail.send/reserve/", status=403)["detail"]
    assert rest.state(job_id) == "ready"


def test_staff_cannot_consume(rest: Rest, staff_api: Callable[..., Any]) -> None:
    job_id = rest.make()["id"]
    staff = Rest(staff_api("delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic"))
    staff.post("topics/mail.send/reserve/", status=403)
    rest.take()
    for how in ENDS:
        staff.post(f"jobs/{job_id}/{how}/", {"attempt": 1}, 403)
    assert rest.state(job_id) == "reserved"


@pytest.mark.on_both
def test_number_of_queries_does_not_grow_with_reserved_jobs(rest: Rest) -> None:
    schedule.schedule_many({"topic": "mail.send", "key": f"k{n}", "delay": 0} for n in range(101))
    counts = [rest.count_queries(partial(rest.take, count=count)) for count in (1, 100)]
    assert Job.objects.exclude(attempt=0).count() == 101
    assert counts[1] <= counts[0] <= 8


# -- finish, release, touch, bury ---------------------------------------------------------------


def test_finished_job_has_ended_and_its_event_records_the_actor(rest: Rest, held: dict[str, Any]) -> None:
    assert end(rest, held, "finish") == {"state": "finished"}
    assert rest.state(held["id"]) == "finished"
    assert events(held["id"]) == [("scheduled", "php"), ("finished", "php")]


def test_released_job_can_be_reserved_at_once(rest: Rest, held: dict[str, Any]) -> None:
    assert end(rest, held, "release") == {"state": "delayed"}
    again = rest.take()[0]
    assert (again["id"], again["attempt"], again["failures"]) == (held["id"], 2, 0)
    assert events(held["id"]) == [("scheduled", "php"), ("released", "php")]


def test_released_job_keeps_its_due_time_unless_a_delay_is_given(
    rest: Rest, held: dict[str, Any], db_clock: Any
) -> None:
    db_clock.advance(seconds=1)
    end(rest, held, "release")
    assert rest.take()[0]["due_at"] == held["due_at"]
    end(rest, held | {"attempt": 2}, "release", delay_seconds=0)
    assert rest.take()[0]["due_at"] == at(1)


@pytest.mark.parametrize("more", [{}, {"error": "502"}])
def test_job_can_be_released_with_a_delay(rest: Rest, held: dict[str, Any], db_clock: Any, more: Any) -> None:
    assert end(rest, held, "release", delay_seconds=0.5, **more) == {"state": "delayed"}
    db_clock.advance(ms=499)
    assert rest.take() == []
    db_clock.advance(ms=1)
    assert [job["failures"] for job in rest.take()] == [1 if more else 0]


def test_a_failed_attempt_waits_for_the_topics_backoff(rest: Rest, held: dict[str, Any]) -> None:
    assert end(rest, held, "release", error="first line\n\tat pay()\nthe bank answered 502") == {"state": "delayed"}
    job = rest.get(f"jobs/{held['id']}/")
    assert (job["state"], job["failures"], job["error"]) == ("delayed", 1, "the bank answered 502")
    assert job["due_at"] > at(0)
    assert job["events"][-1]["error"] == "first line\n\tat pay()\nthe bank answered 502"


def test_last_failed_attempt_makes_the_job_dead(rest: Rest, held: dict[str, Any]) -> None:
    for attempt in (1, 2):
        end(rest, held | {"attempt": attempt}, "release", delay_seconds=0, error="no")
        rest.take()
    assert end(rest, held | {"attempt": 3}, "release", delay_seconds=0, error="no") == {"state": "dead"}
    assert rest.state(held["id"]) == "dead"


def test_a_buried_job_is_dead_with_its_reason(rest: Rest, held: dict[str, Any]) -> None:
    assert end(rest, held, "bury", reason="there is no order 1042") == {"state": "dead"}
    job = rest.get(f"jobs/{held['id']}/")
    assert (job["state"], job["error"]) == ("dead", "there is no order 1042")
    assert events(held["id"])[-1] == ("dead", "php")


def test_touch_gives_a_job_its_full_ttr_again(rest: Rest, held: dict[str, Any], db_clock: Any) -> None:
    db_clock.advance(seconds=29)
    assert end(rest, held, "touch") == {"deadline": at(59)}
    db_clock.advance(ms=29_999)
    assert end(rest, held, "finish") == {"state": "finished"}


# -- the fence ----------------------------------------------------------------------------------


def assert_lease_lost(rest: Rest, job: dict[str, Any], how: str) -> None:
    before = list(Job.objects.filter(pk=job["id"]).values())
    problem = end(rest, job, how, 409)
    assert problem["type"] == "urn:delaytasks:problem:lease-lost"
    assert list(Job.objects.filter(pk=job["id"]).values()) == before


@pytest.mark.parametrize("how", ENDS)
def test_attempt_loses_its_lease_after_the_ttr(rest: Rest, held: dict[str, Any], db_clock: Any, how: str) -> None:
    db_clock.advance(seconds=30)
    assert_lease_lost(rest, held, how)  # nobody has taken it back yet
    guard.guard("default")
    assert_lease_lost(rest, held, how)


@pytest.mark.parametrize("how", ENDS)
def test_earlier_attempt_does_not_hold_the_job(rest: Rest, held: dict[str, Any], how: str) -> None:
    end(rest, held, "release")
    again = rest.take()[0]
    assert_lease_lost(rest, held, how)
    assert_lease_lost(rest, again | {"attempt": 3}, how)
    end(rest, again, how)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("before", ["finish", "release", "bury"])
def test_an_attempt_ends_once(rest: Rest, held: dict[str, Any], before: str, how: str) -> None:
    end(rest, held, before)
    assert_lease_lost(rest, held, how)


@pytest.mark.parametrize("how", ENDS)
def test_job_that_is_not_reserved_cannot_be_ended(rest: Rest, how: str) -> None:
    waits = rest.make(delay_seconds=60) | {"attempt": 1}
    assert_lease_lost(rest, waits, how)


def test_job_whose_ttr_is_over_can_be_reserved_again(rest: Rest, held: dict[str, Any], db_clock: Any) -> None:
    db_clock.advance(seconds=30)
    again = rest.take()[0]
    assert (again["id"], again["attempt"], again["failures"]) == (held["id"], 2, 1)
    assert_lease_lost(rest, held, "finish")
    end(rest, again, "finish")


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attempt": None}, ["attempt"]),
        ({"attempt": 0}, ["attempt"]),
        ({"attempt": 2**31}, ["attempt"]),
        ({"attempt": "1"}, ["attempt"]),
        ({"attempt": True}, ["attempt"]),
        ({"attempt": 1.5}, ["attempt"]),
        ({"token": 1}, ["token"]),
    ],
)
def test_ending_with_an_invalid_field_names_it(
    rest: Rest, held: dict[str, Any], how: str, change: dict[str, Any], named: list[str]
) -> None:
    assert fields(rest.post(f"jobs/{held['id']}/{how}/", {"attempt": 1} | change, 400)) == named
    assert fields(rest.post(f"jobs/{held['id']}/{how}/", status=400)) == ["attempt"]
    assert rest.state(held["id"]) == "reserved"


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("how", "more", "named"),
    [
        ("release", {"delay_seconds": -1}, "delay_seconds"),
        ("release", {"delay_seconds": "5"}, "delay_seconds"),
        ("release", {"delay_seconds": 1e12}, "delay_seconds"),
        ("release", {"error": 502}, "error"),
        ("release", {"error": "a\u0000"}, "error"),
        ("release", {"error": "a\u001b[2J"}, "error"),
        ("release", {"error": "x" * 10_001}, "error"),
        ("release", {"reason": "x"}, "reason"),
        ("bury", {"reason": "x" * 10_001}, "reason"),
        ("bury", {"reason": None}, "reason"),
        ("bury", {"error": "x"}, "error"),
        ("finish", {"error": "x"}, "error"),
        ("touch", {"delay_seconds": 5}, "delay_seconds"),
    ],
)
def test_each_way_to_end_refuses_fields_of_the_others(
    rest: Rest, held: dict[str, Any], how: str, more: dict[str, Any], named: str
) -> None:
    assert fields(end(rest, held, how, 400, **more)) == [named]
    assert rest.state(held["id"]) == "reserved"


@pytest.mark.parametrize("how", ENDS)
def test_ending_requires_the_right_to_consume(
    rest: Rest, rest_of: Callable[..., Rest], held: dict[str, Any], how: str
) -> None:
    assert "consume" in end(rest_of("produce manage", "other"), held, how, 403)["detail"]
    assert rest.state(held["id"]) == "reserved"
    assert "receipt" in end(rest_of("consume", "other"), held, how, 403)["detail"]
    assert rest.state(held["id"]) == "reserved"
    wrong = "This is not the receipt of attempt 1: give the one of its reservation."
    assert end(rest, held, how, 403, receipt=held["receipt"][:-1])["detail"] == wrong
    end(rest_of("consume", "other"), held, how, receipt=held["receipt"])
    if how != "touch":
        assert events(held["id"])[-1][1] == "other"


@pytest.mark.parametrize("how", ENDS)
def test_an_attempt_that_begins_while_a_request_is_checked_is_not_another_accounts(
    rest: Rest, rest_of: Callable[..., Rest], how: str, monkeypatch: pytest.MonkeyPatch, views_only: None
) -> None:
    made, find = rest.make(), AttemptView.job

    def slow_find(view: AttemptView, *args: Any) -> Job:
        job = find(view, *args)
        rest.take()
        return job

    monkeypatch.setattr(AttemptView, "job", slow_find)
    problem = end(rest_of("consume", "other"), made | {"attempt": 1}, how, 409)
    assert problem["type"] == "urn:delaytasks:problem:lease-lost"
    end(rest, made | {"attempt": 1}, "finish")


# -- races --------------------------------------------------------------------------------------


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls concurrently, each with its own connection, and return their results."""
    answers: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(number: int) -> None:
        try:
            start.wait(10)
            answers[number] = calls[number]()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=[number]) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers


@pytest.mark.on_both
def test_each_job_is_reserved_by_exactly_one_of_many_consumers(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    schedule.schedule_many({"topic": "mail.send", "key": f"k{n:02}", "delay": 0} for n in range(40))
    clients = [rest_of(account=f"c{number}") for number in range(4)]

    def consume(client: Rest) -> list[str]:
        taken: list[str] = []
        while found := client.take(count=3):
            taken += [job["key"] for job in found]
        return taken

    taken = run_concurrently(*(lambda client=client: consume(client) for client in clients))
    assert sorted(key for keys in taken for key in keys) == [f"k{n:02}" for n in range(40)]


@pytest.mark.on_both
def test_concurrent_cancel_and_reserve_have_one_winner(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    other = rest_of(account="other")
    for number in range(8):
        job_id = rest.make(f"k{number}")["id"]
        cancelled, taken = run_concurrently(
            lambda job_id=job_id: rest.client.post(f"/api/jobs/{job_id}/cancel/").json(), other.take
        )
        assert (cancelled["result"], [job["id"] for job in taken]) in [("cancelled", []), ("running", [job_id])]
        assert rest.state(job_id) == ("reserved" if taken else "cancelled")


@pytest.mark.on_both
def test_concurrent_finishes_have_one_winner(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    clients = [rest, rest_of()]
    for number in range(8):
        rest.make(f"k{number}")
        path = f"/api/jobs/{rest.take()[0]['id']}/finish/"
        answers = run_concurrently(*(lambda c=client, p=path: c.client.post(p, {"attempt": 1}) for client in clients))
        assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert JobEvent.objects.filter(outcome="finished").count() == 8


@pytest.mark.on_both
def test_concurrent_creates_of_the_same_job_have_one_winner(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    clients = [rest, rest_of()]
    for number in range(8):
        terms = {"topic": "mail.send", "key": f"k{number}", "delay_seconds": 60, "on_conflict": "keep"}
        answers = run_concurrently(
            *(lambda c=client, t=terms: c.client.post("/api/jobs/", t).json() for client in clients)
        )
        assert sorted(answer["result"] for answer in answers) == ["created", "kept"]
        assert len({answer["id"] for answer in answers}) == 1


def test_cancelled_job_cannot_be_finished(rest: Rest, held: dict[str, Any]) -> None:
    end(rest, held, "release")
    control.cancel_job(held["id"], by="x")
    assert_lease_lost(rest, held, "finish")
