"""Consumers over REST: reserving, and the four ends that an attempt can have."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from delaytasks import changing, scheduling, sweeper
from delaytasks.models import Job, JobEvent
from tests.api.rest_client import Rest, at, events, fields

ENDS = ["finish", "release", "touch", "bury"]


@pytest.fixture
def held(rest: Rest) -> dict[str, Any]:
    """A job that is reserved, as reserving gave it."""
    rest.make(body={"n": 1})
    return rest.take()[0]


def end(rest: Rest, job: dict[str, Any], how: str, status: int = 200, **more: Any) -> Any:
    return rest.post(f"jobs/{job['id']}/{how}/", {"attempt": job["attempt"], **more}, status)


# -- reserve ------------------------------------------------------------------------------------


def test_a_ready_job_is_reserved_with_all_that_its_consumer_needs(rest: Rest, db_clock: Any) -> None:
    made = rest.make(delay_seconds=10, body=[1], ttr_seconds=1.5)
    assert rest.take() == []
    db_clock.advance(ms=10_004)
    assert rest.take() == [
        {"id": made["id"], "topic": "mail.send", "key": "mail:1", "attempt": 1, "failures": 0, "body": [1],
         "ttr_seconds": 1.5, "due_at": at(10), "deadline": at(11.504), "late_ms": 4}
    ]  # fmt: skip
    assert rest.take() == []
    assert rest.state(made["id"]) == "reserved"


def test_one_is_given_unless_more_are_asked_for_oldest_due_first(rest: Rest, db_clock: Any) -> None:
    for number in (3, 1, 2, 5, 4):
        rest.make(f"k{number}", delay_seconds=number)
    db_clock.advance(seconds=10)
    assert [job["key"] for job in rest.take()] == ["k1"]
    assert [job["key"] for job in rest.take(count=3)] == ["k2", "k3", "k4"]
    assert [job["key"] for job in rest.take(count=200)] == ["k5"]


@pytest.mark.parametrize(("consumer", "worker"), [(None, "php"), ("", "php"), ("mail 2/ü", "php/mail 2/ü")])
def test_the_job_keeps_who_has_it(rest: Rest, consumer: str | None, worker: str) -> None:
    job_id = rest.make()["id"]
    rest.take(**({} if consumer is None else {"consumer": consumer}))
    assert rest.get(f"jobs/{job_id}/")["worker"] == worker


def test_an_empty_request_takes_one_at_once(rest: Rest) -> None:
    rest.make()
    assert len(rest.post("topics/mail.send/reserve/")["jobs"]) == 1
    assert rest.post("topics/mail.send/reserve/", b"") == {"jobs": []}


def test_who_waits_gets_what_is_ready_already(rest: Rest) -> None:
    rest.make()
    assert len(rest.take(wait_seconds=60)) == 1


def test_who_waits_for_nothing_gets_nothing_when_the_time_is_over(rest: Rest) -> None:
    assert rest.take(wait_seconds=0.05, count=5) == []


@pytest.mark.parametrize(
    ("wish", "named"),
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
def test_a_bad_field_is_refused_by_name_and_nothing_is_reserved(
    rest: Rest, wish: dict[str, Any], named: list[str]
) -> None:
    job_id = rest.make()["id"]
    assert sorted(fields(rest.post("topics/mail.send/reserve/", wish, 400))) == named
    assert rest.state(job_id) == "ready"


def test_the_most_that_can_be_reserved_is_a_setting(rest: Rest, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BATCH_MAX": 2}
    for number in range(3):
        rest.make(f"k{number}")
    assert len(rest.take(count=3)) == 2


def test_a_whole_number_may_be_written_with_a_point(rest: Rest) -> None:
    rest.make()
    assert len(rest.take(count=1.0)) == 1


@pytest.mark.parametrize("rights", ["produce", "manage", "produce manage"])
def test_reserving_needs_the_right_to_consume(rest: Rest, rest_of: Callable[..., Rest], rights: str) -> None:
    job_id = rest.make()["id"]
    assert "consume" in rest_of(rights).post("topics/mail.send/reserve/", status=403)["detail"]
    assert rest.state(job_id) == "ready"


def test_staff_never_consume(rest: Rest, staff_api: Callable[..., Any]) -> None:
    job_id = rest.make()["id"]
    staff = Rest(staff_api("delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic"))
    staff.post("topics/mail.send/reserve/", status=403)
    rest.take()
    for how in ENDS:
        staff.post(f"jobs/{job_id}/{how}/", {"attempt": 1}, 403)
    assert rest.state(job_id) == "reserved"


def test_the_number_of_queries_does_not_grow_with_the_jobs_that_are_reserved(rest: Rest) -> None:
    rest.get("jobs/")  # the token's use is written down by now
    scheduling.schedule_many({"topic": "mail.send", "key": f"k{n}", "delay": 0} for n in range(101))
    counts = []
    for count in (1, 100):
        with CaptureQueriesContext(connection) as queries:
            assert len(rest.take(count=count)) == count
        counts.append(len(queries))
    assert counts[1] <= counts[0] <= 8


# -- finish, release, touch, bury ---------------------------------------------------------------


def test_a_finished_job_has_ended_and_the_event_says_who_did_it(rest: Rest, held: dict[str, Any]) -> None:
    assert end(rest, held, "finish") == {"state": "finished"}
    assert rest.state(held["id"]) == "finished"
    assert events(held["id"]) == [("scheduled", "php"), ("finished", "php")]


def test_a_job_that_is_given_back_can_be_reserved_at_once(rest: Rest, held: dict[str, Any]) -> None:
    assert end(rest, held, "release") == {"state": "delayed"}
    again = rest.take()[0]
    assert (again["id"], again["attempt"], again["failures"]) == (held["id"], 2, 0)
    assert events(held["id"]) == [("scheduled", "php"), ("released", "php")]


@pytest.mark.parametrize("more", [{}, {"error": "502"}])
def test_a_job_can_be_given_back_for_later(rest: Rest, held: dict[str, Any], db_clock: Any, more: Any) -> None:
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


def test_the_last_failed_attempt_leaves_the_job_dead(rest: Rest, held: dict[str, Any]) -> None:
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


def test_a_touched_job_has_its_whole_ttr_again(rest: Rest, held: dict[str, Any], db_clock: Any) -> None:
    db_clock.advance(seconds=29)
    assert end(rest, held, "touch") == {"deadline": at(59)}
    db_clock.advance(ms=29_999)
    assert end(rest, held, "finish") == {"state": "finished"}


# -- the fence ----------------------------------------------------------------------------------


def lost(rest: Rest, job: dict[str, Any], how: str) -> None:
    before = list(Job.objects.filter(pk=job["id"]).values())
    problem = end(rest, job, how, 409)
    assert problem["type"] == "urn:delaytasks:problem:lease-lost"
    assert list(Job.objects.filter(pk=job["id"]).values()) == before


@pytest.mark.parametrize("how", ENDS)
def test_when_its_ttr_is_over_an_attempt_holds_nothing(
    rest: Rest, held: dict[str, Any], db_clock: Any, how: str
) -> None:
    db_clock.advance(seconds=30)
    lost(rest, held, how)  # nobody has taken it back yet
    sweeper.guard("default")
    lost(rest, held, how)


@pytest.mark.parametrize("how", ENDS)
def test_an_attempt_before_this_one_holds_nothing(rest: Rest, held: dict[str, Any], how: str) -> None:
    end(rest, held, "release")
    again = rest.take()[0]
    lost(rest, held, how)
    lost(rest, again | {"attempt": 3}, how)
    end(rest, again, how)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("before", ["finish", "release", "bury"])
def test_an_attempt_ends_once(rest: Rest, held: dict[str, Any], before: str, how: str) -> None:
    end(rest, held, before)
    lost(rest, held, how)


@pytest.mark.parametrize("how", ENDS)
def test_a_job_that_nobody_holds_is_nobodys_to_end(rest: Rest, how: str) -> None:
    waits = rest.make(delay_seconds=60) | {"attempt": 1}
    lost(rest, waits, how)


def test_a_job_that_outlived_its_ttr_is_given_to_the_next(rest: Rest, held: dict[str, Any], db_clock: Any) -> None:
    db_clock.advance(seconds=30)
    again = rest.take()[0]
    assert (again["id"], again["attempt"], again["failures"]) == (held["id"], 2, 1)
    lost(rest, held, "finish")
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
def test_an_end_with_a_bad_field_is_refused_by_name(
    rest: Rest, held: dict[str, Any], how: str, change: dict[str, Any], named: list[str]
) -> None:
    assert fields(rest.post(f"jobs/{held['id']}/{how}/", {"attempt": 1} | change, 400)) == named
    assert fields(rest.post(f"jobs/{held['id']}/{how}/", status=400)) == ["attempt"]
    assert rest.state(held["id"]) == "reserved"


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
def test_each_end_takes_its_own_fields(
    rest: Rest, held: dict[str, Any], how: str, more: dict[str, Any], named: str
) -> None:
    assert fields(end(rest, held, how, 400, **more)) == [named]
    assert rest.state(held["id"]) == "reserved"


@pytest.mark.parametrize("how", ENDS)
def test_ending_needs_the_right_to_consume(
    rest: Rest, rest_of: Callable[..., Rest], held: dict[str, Any], how: str
) -> None:
    assert "consume" in end(rest_of("produce manage", "other"), held, how, 403)["detail"]
    assert rest.state(held["id"]) == "reserved"
    end(rest_of("consume", "other"), held, how)
    if how != "touch":
        assert events(held["id"])[-1][1] == "other"


# -- races --------------------------------------------------------------------------------------


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each call answered; all of them begin together, each on a connection of its own."""
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


def test_each_job_is_given_to_one_of_many_consumers(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    scheduling.schedule_many({"topic": "mail.send", "key": f"k{n:02}", "delay": 0} for n in range(40))
    clients = [rest_of(account=f"c{number}") for number in range(4)]

    def consume(client: Rest) -> list[str]:
        taken: list[str] = []
        while found := client.take(count=3):
            taken += [job["key"] for job in found]
        return taken

    taken = at_once(*(lambda client=client: consume(client) for client in clients))
    assert sorted(key for keys in taken for key in keys) == [f"k{n:02}" for n in range(40)]


def test_of_a_cancel_and_a_reservation_at_once_one_wins(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    other = rest_of(account="other")
    for number in range(8):
        job_id = rest.make(f"k{number}")["id"]
        cancelled, taken = at_once(
            lambda job_id=job_id: rest.client.post(f"/api/jobs/{job_id}/cancel/").json(), other.take
        )
        assert (cancelled["result"], [job["id"] for job in taken]) in [("cancelled", []), ("running", [job_id])]
        assert rest.state(job_id) == ("reserved" if taken else "cancelled")


def test_of_two_finishes_at_once_one_wins(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    clients = [rest, rest_of(account="other")]
    for number in range(8):
        rest.make(f"k{number}")
        path = f"/api/jobs/{rest.take()[0]['id']}/finish/"
        answers = at_once(*(lambda c=client, p=path: c.client.post(p, {"attempt": 1}) for client in clients))
        assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert JobEvent.objects.filter(outcome="finished").count() == 8


def test_of_two_who_make_the_same_job_at_once_one_makes_it(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    clients = [rest, rest_of(account="other")]
    for number in range(8):
        terms = {"topic": "mail.send", "key": f"k{number}", "delay_seconds": 60, "on_conflict": "keep"}
        answers = at_once(*(lambda c=client, t=terms: c.client.post("/api/jobs/", t).json() for client in clients))
        assert sorted(answer["result"] for answer in answers) == ["created", "kept"]
        assert len({answer["id"] for answer in answers}) == 1


def test_a_cancelled_job_is_nobodys_to_finish(rest: Rest, held: dict[str, Any]) -> None:
    end(rest, held, "release")
    changing.cancel_job(held["id"], by="x")
    lost(rest, held, "finish")
