"""Bulk requests of up to 1,000 jobs: all or none, with every error named."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks.api.access.permissions import TokenCaller
from delaytasks.jobs import control, schedule, storage
from delaytasks.models import Job, JobEvent
from tests.api.rest_client import Rest, at, events, fields


def terms(number: int, **more: Any) -> dict[str, Any]:
    return {"topic": "mail.send", "key": f"mail:{number}", "delay_seconds": 60} | more


def bulk(rest: Rest, jobs: list[Any], status: int = 201, **more: Any) -> Any:
    return rest.post("jobs/", {"jobs": jobs, **more}, status)


def test_bulk_creates_jobs_each_with_its_own_terms(rest: Rest) -> None:
    jobs = [
        terms(1, body={"n": 1}, ttr_seconds=5, expires_seconds=0.5),
        {"topic": "mail.print", "key": "p", "due_at": "2030-01-01T01:00:00.250+01:00", "priority": 9},
        terms(2),
    ]
    made = bulk(rest, jobs)
    assert {name: made[name] for name in ("created", "kept", "replaced")} == {"created": 3, "kept": 0, "replaced": 0}
    assert [(job["topic"], job["key"]) for job in made["jobs"]] == [
        ("mail.send", "mail:1"), ("mail.print", "p"), ("mail.send", "mail:2"),
    ]  # fmt: skip
    read = [rest.get(f"jobs/{job['id']}/") for job in made["jobs"]]
    assert [(job["due_at"], job["ttr_seconds"], job["body"]) for job in read] == [
        (at(60), 5, {"n": 1}), (at(0.25), 60, {}), (at(60), 30, {}),
    ]  # fmt: skip
    assert [job["expires_seconds"] for job in read] == [0.5, None, None]
    assert [job["priority"] for job in read] == [0, 9, 0]
    assert all(events(job["id"]) == [("scheduled", "php")] for job in made["jobs"])


@pytest.mark.on_both
def test_bulk_of_a_thousand_jobs_needs_few_queries(rest: Rest) -> None:
    with CaptureQueriesContext(connection) as queries:
        made = bulk(rest, [terms(number) for number in range(1000)])
    assert (made["created"], Job.objects.count(), JobEvent.objects.count()) == (1000, 1000, 1000)
    assert len(queries) <= 20  # two chunks, each with its events; the token, its use, the topics
    assert [job["key"] for job in made["jobs"]] == [f"mail:{number}" for number in range(1000)]


@pytest.mark.parametrize(("count", "said"), [(0, "0 entries"), (1001, "1,001 entries")])
def test_empty_and_oversized_bulk_are_refused(rest: Rest, count: int, said: str) -> None:
    problem = bulk(rest, [terms(number) for number in range(count)], 400)
    assert fields(problem) == ["jobs"]
    assert said in problem["detail"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("jobs", [None, {}, "mail:1", 7])
def test_jobs_that_are_not_a_list_are_refused(rest: Rest, jobs: Any) -> None:
    assert fields(bulk(rest, jobs, 400)) == ["jobs"]


def test_bulk_refuses_unknown_fields(rest: Rest) -> None:
    assert fields(bulk(rest, [terms(1)], 400, topic="mail.send")) == ["topic"]
    assert fields(bulk(rest, [terms(1, on_conflict="keep")], 400)) == ["jobs[0].on_conflict"]
    assert fields(bulk(rest, [terms(1)], 400, on_conflict="ignore")) == ["on_conflict"]


def test_every_invalid_field_is_named_with_its_index_and_nothing_is_created(rest: Rest) -> None:
    jobs = [
        terms(0),
        terms(1, delay_seconds="60"),
        {"topic": "mail.send", "key": "k", "due_at": "2030-01-01T00:00:00"},
        terms(3, key="", ttr_seconds=0),
        terms(4, due_at="2030-01-01T00:00:00Z"),
        None,
        [],
        terms(7, delay=5),
        terms(8, body="x" * 70_000),
        {"topic": "mail.send", "key": "k", "due_at": "2099-01-01T00:00:00Z"},
        {},
    ]
    problem = bulk(rest, jobs, 400)
    assert sorted(fields(problem)) == sorted(
        ["jobs[1].delay_seconds", "jobs[2].due_at", "jobs[3].key", "jobs[3].ttr_seconds", "jobs[4].due_at", "jobs[5]",
         "jobs[6]", "jobs[7].delay", "jobs[8].body", "jobs[9].due_at", "jobs[10].topic", "jobs[10].key"]
    )  # fmt: skip
    assert not Job.objects.exists()


def test_at_most_twenty_errors_are_listed(rest: Rest) -> None:
    problem = bulk(rest, [terms(number, ttr_seconds=0) for number in range(1000)], 400)
    assert fields(problem) == [f"jobs[{number}].ttr_seconds" for number in range(20)]
    assert len(problem["detail"]) < 1000


def test_one_topic_without_a_grant_refuses_the_whole_bulk(rest: Rest) -> None:
    jobs = [terms(1), terms(2), terms(3, topic="sms.send"), terms(4, topic="sms.none")]
    assert "sms.send" in bulk(rest, jobs, 403)["detail"]
    assert not Job.objects.exists()


def test_only_granted_unknown_topics_are_named(rest: Rest) -> None:
    problem = bulk(rest, [terms(1), terms(2, topic="mail.none"), terms(3, topic="mail.nil")], 400)
    assert fields(problem) == ["jobs[1].topic", "jobs[2].topic"]
    assert "sms" not in str(problem)
    assert not Job.objects.exists()


def test_bulk_requires_the_right_to_produce(rest_of: Callable[..., Rest]) -> None:
    assert "produce" in bulk(rest_of("consume manage"), [terms(1)], 403)["detail"]


# -- jobs that are live already -----------------------------------------------------------------


def test_live_keys_refuse_the_bulk_and_are_listed_with_their_jobs(rest: Rest) -> None:
    live = [rest.make(f"mail:{number}", delay_seconds=9)["id"] for number in (2, 4)]
    problem = bulk(rest, [terms(number) for number in range(6)], 409)
    assert problem["type"] == "urn:delaytasks:problem:key-is-live"
    assert [(each["field"], each["job_id"]) for each in problem["errors"]] == [
        ("jobs[2].key", live[0]), ("jobs[4].key", live[1]),
    ]  # fmt: skip
    assert Job.objects.count() == 2


def test_at_most_twenty_live_keys_are_listed(rest: Rest) -> None:
    bulk(rest, [terms(number) for number in range(50)])
    assert fields(bulk(rest, [terms(number) for number in range(50)], 409)) == [f"jobs[{n}].key" for n in range(20)]


def test_repeated_bulk_keeps_the_jobs(rest: Rest) -> None:
    jobs = [terms(number) for number in range(3)]
    made = bulk(rest, jobs, on_conflict="keep")
    again = bulk(rest, jobs, 200, on_conflict="keep")
    assert again == made | {"created": 0, "kept": 3}
    more = bulk(rest, [*jobs, terms(3)], 201, on_conflict="keep")
    assert (more["created"], more["kept"], more["jobs"][:3]) == (1, 3, made["jobs"])


def test_bulk_replaces_live_jobs_and_events_record_the_actor(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    made = bulk(rest, [terms(1), terms(2)])["jobs"]
    replaced = bulk(rest_of(account="go"), [terms(1, delay_seconds=5), terms(3)], 201, on_conflict="replace")
    assert (replaced["created"], replaced["replaced"], replaced["jobs"][0]) == (1, 1, made[0])
    assert rest.get(f"jobs/{made[0]['id']}/")["due_at"] == at(5)
    assert events(made[0]["id"]) == [("scheduled", "php"), ("rescheduled", "go")]
    assert events(made[1]["id"]) == [("scheduled", "php")]


def test_bulk_runs_reserved_jobs_again_and_counts_them(rest: Rest) -> None:
    bulk(rest, [terms(1), terms(2, delay_seconds=0)])
    held = rest.take()[0]
    made = bulk(rest, [terms(number) for number in range(3)], on_conflict="again")
    assert {name: made[name] for name in ("created", "kept", "replaced", "again")} == {
        "created": 1, "kept": 1, "replaced": 0, "again": 1,
    }  # fmt: skip
    assert made["jobs"][2]["id"] == held["id"]
    assert [job.pk for job in Job.objects.filter(again=True)] == [held["id"]]


def test_bulk_refuses_to_replace_a_reserved_job_and_names_it(rest: Rest) -> None:
    bulk(rest, [terms(1), terms(2, delay_seconds=0), terms(3)])
    held = rest.take()[0]
    problem = bulk(rest, [terms(number) for number in range(4)], 409, on_conflict="replace")
    assert problem["type"] == "urn:delaytasks:problem:reserved"
    assert [(each["field"], each["job_id"]) for each in problem["errors"]] == [("jobs[2].key", held["id"])]
    assert Job.objects.count() == 3
    assert set(JobEvent.objects.values_list("outcome", flat=True)) == {"scheduled"}


def test_duplicate_key_is_named_with_its_first_index(rest: Rest) -> None:
    problem = bulk(rest, [terms(1), terms(2), terms(1), terms(1, topic="mail.print")], 409)
    assert [(each["field"], "jobs[0]" in each["detail"]) for each in problem["errors"]] == [("jobs[2].key", True)]
    assert not Job.objects.exists()


def test_keep_takes_the_first_of_duplicate_keys_and_replace_the_last(rest: Rest) -> None:
    twice = [terms(1, delay_seconds=5), terms(1, delay_seconds=6)]
    kept = bulk(rest, twice, on_conflict="keep")
    assert ((kept["created"], kept["kept"], kept["replaced"]), len({job["id"] for job in kept["jobs"]})) == (
        (1, 1, 0),
        1,
    )
    assert rest.get(f"jobs/{kept['jobs'][0]['id']}/")["due_at"] == at(5)
    replaced = bulk(rest, [terms(2, delay_seconds=5), terms(2, delay_seconds=6)], on_conflict="replace")
    assert (replaced["created"], replaced["kept"], replaced["replaced"]) == (1, 0, 1)
    assert rest.get(f"jobs/{replaced['jobs'][0]['id']}/")["due_at"] == at(6)


def test_bulk_that_fails_at_its_end_is_rolled_back(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(schedule.transitions, "record", fail)
    rest.client.client.raise_request_exception = False
    assert rest.client.post("/api/jobs/", {"jobs": [terms(1), terms(2)]}).status_code == 500
    assert not Job.objects.exists()


def test_kept_job_that_ends_meanwhile_is_named_all_the_same(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = rest.make("kept", delay_seconds=600)
    store_all = storage._store_all

    def store_then_cancel(*args: Any, **kwargs: Any) -> Any:
        result = store_all(*args, **kwargs)
        assert control.cancel("mail.send", "kept") == "cancelled"
        return result

    monkeypatch.setattr(storage, "_store_all", store_then_cancel)
    made = bulk(rest, [terms(1), terms(0, key="kept")], 201, on_conflict="keep")
    assert (made["created"], made["kept"]) == (1, 1)
    assert made["jobs"][1] == {"id": kept["id"], "topic": "mail.send", "key": "kept"}


def test_job_that_is_pruned_between_two_statements_is_not_found(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rest.make("k")
    sees = TokenCaller.sees

    def prune_then_see(caller: TokenCaller, topic: str) -> bool:
        JobEvent.objects.all()._raw_delete("default")
        Job.objects.all().delete()
        return sees(caller, topic)

    monkeypatch.setattr(TokenCaller, "sees", prune_then_see)
    assert rest.get(f"jobs/{made['id']}/", 404)["type"].endswith(":not-found")


def test_kept_job_that_is_pruned_meanwhile_is_created_anew(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rest.make("k", delay_seconds=600)
    find_job = schedule.find_job

    def prune_then_find(using: str, job_id: int) -> Job | None:
        JobEvent.objects.filter(job=made["id"])._raw_delete("default")
        Job.objects.filter(pk=made["id"]).delete()
        return find_job(using, job_id)

    monkeypatch.setattr(schedule, "find_job", prune_then_find)
    again = rest.make("k", delay_seconds=600, on_conflict="keep")
    assert (again["result"], again["id"] != made["id"]) == ("created", True)
