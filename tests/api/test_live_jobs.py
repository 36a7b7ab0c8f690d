"""The limit of live jobs per token: what counts, who is refused, and how far the count may be off."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import delaytasks
from delaytasks.api.access.permissions import caller_of
from delaytasks.api.access.token_cache import Answer
from delaytasks.api.limits import live_jobs
from delaytasks.api.models import Token
from delaytasks.db.transitions import produced_by
from delaytasks.jobs import control
from delaytasks.models import Job, Schedule
from delaytasks.recurrence import maker
from delaytasks.signals import job_scheduled
from delaytasks.states import State
from delaytasks.worker import leases
from tests.api.schema_checks import check_response

TOPIC = "order.close"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Callable[[float], None]:
    """clock(5) sets the time of the limit to 5 s after the start of the test."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {TOPIC: {}}}

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(live_jobs, "now", lambda: 1000.0 + seconds)

    set_to(0)
    return set_to


def new(key: str) -> dict[str, Any]:
    return {"topic": TOPIC, "key": key, "delay_seconds": 60}


def added(client: Any, *keys: str) -> list[int]:
    return [client.post("/api/jobs/", new(key)).status_code for key in keys]


@pytest.mark.on_both
def test_a_job_above_the_limit_is_refused(make_token: Any, api: Any) -> None:
    client = api(make_token(max_live_jobs=2))
    assert added(client, "a", "b") == [201, 201]
    answer = client.post("/api/jobs/", new("c"))
    assert answer.status_code == 429
    check_response("POST", "/api/jobs/", answer)
    problem = answer.json()
    assert problem["type"] == "urn:delaytasks:problem:too-many-live-jobs"
    assert problem["detail"].startswith("The token has 2 live jobs, and at most 2 are allowed")
    assert answer.headers["Retry-After"] == "5"
    assert set(Job.objects.values_list("key", "producer")) == {(key, Token.objects.get().prefix) for key in "ab"}


def test_the_queue_and_bulk_requests_are_limited_alike(make_token: Any, api: Any) -> None:
    client = api(make_token(max_live_jobs=2))
    add = {"command": "add", "topic": TOPIC, "delay": 60, "TTR": 30, "body": None}
    assert client.post("/api/jobs/", {"jobs": [new("a"), new("b"), new("c")]}).status_code == 429
    assert not Job.objects.exists()
    assert client.post("/api/queue/", {**add, "id": "a"}).json()["success"]
    assert client.post("/api/jobs/", {"jobs": [new("b")]}).status_code == 201
    refused = client.post("/api/queue/", {**add, "id": "c"})
    assert (refused.status_code, refused.json()["success"]) == (429, False)
    assert "at most 2 are allowed" in refused.json()["error"]
    assert Job.objects.count() == 2


def test_the_setting_applies_to_tokens_without_a_limit(make_token: Any, api: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_MAX_LIVE_JOBS": 1}
    assert added(api(make_token()), "a", "b") == [201, 429]
    assert added(api(make_token(max_live_jobs=2)), "c", "d", "e") == [201, 201, 429]


def test_a_changed_limit_applies_at_once(make_token: Any, api: Any) -> None:
    client = api(make_token(max_live_jobs=1))
    assert added(client, "a", "b") == [201, 429]
    token = Token.objects.get()
    token.max_live_jobs = 2
    token.save()
    assert added(client, "c", "d") == [201, 429]


def test_only_live_jobs_of_the_token_count(make_token: Any, api: Any, clock: Any) -> None:
    client, other = api(make_token(max_live_jobs=1)), api(make_token(max_live_jobs=1))
    delaytasks.schedule(TOPIC, key="python", delay=60)
    assert added(other, "other") == [201]
    assert added(client, "a", "b") == [201, 429]
    control.cancel(TOPIC, "a")
    assert added(client, "b") == [429]  # the last count holds for five seconds
    clock(live_jobs.RECOUNT_SECONDS)
    assert added(client, "b", "c") == [201, 429]


def test_staff_are_not_limited(staff_api: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_MAX_LIVE_JOBS": 1}
    staff = staff_api("delaytasks.view_job", "delaytasks.operate_job")
    assert added(staff, "a", "b") == [201, 201]


def test_jobs_are_counted_once_for_a_portion(make_token: Any) -> None:
    make_token(max_live_jobs=1000)
    portion, limited = 1000 // live_jobs.PARTS, caller()
    with CaptureQueriesContext(connection) as captured:
        for _ in range(portion):
            live_jobs.take(limited, 1, "default")
    assert len(captured.captured_queries) == 1
    assert not live_jobs.take_counted(limited, 1)


def caller() -> Any:
    return caller_of(Answer(Token.objects.select_related("account").latest("pk")))


def test_concurrent_requests_of_a_process_count_once(make_token: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_token(max_live_jobs=1000)
    limited, together, counted = caller(), threading.Barrier(8), list[str]()
    monkeypatch.setattr(live_jobs, "_live", lambda producer, most, using: counted.append(producer) or 0)

    def take() -> None:
        together.wait(10)
        live_jobs.take(limited, 1, "default")

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(take) for _ in range(8)]:
            done.result(10)
    assert counted == [limited.producer]


def test_a_count_reads_the_index_of_producers() -> None:
    if connection.vendor == "sqlite":
        rows = Job.objects.filter(producer="abcdefgh", ended_at__isnull=True)[:5].values("pk")
        assert "delaytasks_job_producer" in rows.explain()


@pytest.mark.parametrize("seed", range(3))
def test_several_processes_exceed_the_limit_by_a_portion_each(
    seed: int, make_token: Any, monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    make_token(max_live_jobs=60)
    processes: list[dict[str, Any]] = [{} for _ in range(4)]
    chance, at, refused = random.Random(seed), 0.0, 0
    while refused < 50:
        at += chance.choice((0.0, 0.1))
        clock(at)
        monkeypatch.setattr(live_jobs, "_counts", chance.choice(processes))
        try:
            live_jobs.take(caller(), 1, "default")
        except live_jobs.ProblemError:
            refused += 1
            continue
        with produced_by(caller().producer):
            delaytasks.schedule(TOPIC, key=f"job:{Job.objects.count()}", delay=60)
    assert 60 <= Job.objects.count() <= 60 + 3 * 60 // live_jobs.PARTS


@pytest.mark.on_both
def test_the_next_run_of_a_running_job_counts_too(make_token: Any, api: Any) -> None:
    client = api(make_token())
    again = {"topic": TOPIC, "key": "a", "delay_seconds": 0, "on_conflict": "again"}
    job_id = client.post("/api/jobs/", again).json()["id"]
    leases.reserve(TOPIC, 1, using="default", worker="w")
    assert client.post("/api/jobs/", again).json()["result"] == "again"
    leases.finish(job_id, 1, using="default")
    live = Job.objects.get(ended_at__isnull=True)
    assert (live.pk != job_id, live.producer) == (True, Token.objects.get().prefix)


@pytest.mark.on_both
def test_jobs_that_a_request_makes_of_a_schedule_count(make_token: Any, api: Any, clock: Any) -> None:
    client = api(make_token(max_live_jobs=2))
    terms = {"name": "report", "topic": TOPIC, "every_seconds": 3600, "start_at": "2020-01-01T00:00:00Z"}
    assert client.post("/api/schedules/", terms).status_code == 201
    assert client.post("/api/schedules/report/run-now/").status_code == 201
    assert Job.objects.filter(producer=Token.objects.get().prefix).count() == 2
    clock(live_jobs.RECOUNT_SECONDS)
    span = {"first_at": "2020-01-01T00:00:00Z", "last_at": "2020-01-01T00:00:00Z"}
    for path, data in (("report/run-now/", {}), ("report/backfill/", span), ("", {**terms, "name": "other"})):
        assert client.post(f"/api/schedules/{path}", data).status_code == 429
    assert added(client, "a") == [429]


def test_nothing_is_left_in_the_context() -> None:
    with produced_by("abcdefgh"):
        delaytasks.schedule(TOPIC, key="a", delay=60)
    delaytasks.schedule(TOPIC, key="b", delay=60)
    assert list(Job.objects.order_by("key").values_list("producer", flat=True)) == ["abcdefgh", None]


@pytest.mark.on_both
def test_a_backfill_counts_all_its_jobs(make_token: Any, api: Any) -> None:
    client = api(make_token(max_live_jobs=5))
    terms = {"name": "report", "topic": TOPIC, "every_seconds": 3600, "start_at": "2020-01-01T00:00:00Z"}
    assert client.post("/api/schedules/", terms).status_code == 201
    span = {"first_at": "2020-01-01T00:00:00Z", "last_at": "2020-01-01T04:00:00Z"}
    assert client.post("/api/schedules/report/backfill/", span).status_code == 429
    assert Job.objects.count() == 1
    span["last_at"] = "2020-01-01T03:00:00Z"
    assert client.post("/api/schedules/report/backfill/", span).json()["made"] == 4


@pytest.mark.on_both
def test_a_token_makes_no_more_schedules_than_it_may_have_live_jobs(make_token: Any, api: Any) -> None:
    client, other = api(make_token(max_live_jobs=2)), api(make_token(max_live_jobs=2))
    terms = {"topic": TOPIC, "every_seconds": 3600}
    for name in ("a", "b"):
        assert client.post("/api/schedules/", {**terms, "name": name}).status_code == 201
        assert client.post(f"/api/jobs/{Job.objects.latest('pk').pk}/cancel/").json()["result"] == "cancelled"
        live_jobs.clear_cache()
    answer = client.post("/api/schedules/", {**terms, "name": "c"})
    check_response("POST", "/api/schedules/", answer)
    assert answer.status_code == 429
    assert answer.json()["type"] == "urn:delaytasks:problem:too-many-schedules"
    assert answer.json()["detail"] == "The token may have at most 2 schedules, as it may have 2 live jobs: delete some."
    assert other.post("/api/schedules/", {**terms, "name": "c"}).status_code == 201
    assert client.request("DELETE", "/api/schedules/a/").status_code == 200
    assert client.post("/api/schedules/", {**terms, "name": "d"}).status_code == 201


def test_a_retried_job_counts_again_for_its_own_token(make_token: Any, api: Any) -> None:
    client = api(make_token(max_live_jobs=1, topics={"*": "produce manage"}))
    staff = api(make_token("staff", max_live_jobs=1, topics={"*": "produce manage"}))
    assert added(client, "dead") == [201]
    Job.objects.update(state=State.DEAD, ended_at=timezone.now(), died_at=timezone.now())
    dead = Job.objects.get()
    live_jobs.clear_cache()
    assert added(client, "b") == added(staff, "c") == [201]
    assert client.post(f"/api/jobs/{dead.pk}/retry/").status_code == 429
    assert staff.post(f"/api/jobs/{dead.pk}/retry/").status_code == 200


@pytest.mark.on_both
@pytest.mark.parametrize(("mode", "status"), [("keep", 200), ("replace", 200), ("again", 200), ("reject", 409)])
def test_a_request_for_a_live_key_is_not_refused(mode: str, status: int, make_token: Any, api: Any) -> None:
    client = api(make_token(max_live_jobs=2))
    assert added(client, "a", "b", "c") == [201, 201, 429]
    assert client.post("/api/jobs/", {**new("a"), "on_conflict": mode}).status_code == status
    assert client.post("/api/jobs/", {"jobs": [new("a"), new("b")], "on_conflict": mode}).status_code == status
    assert client.post("/api/jobs/", {"jobs": [new("a"), new("c")], "on_conflict": mode}).status_code == 429
    add = {"command": "add", "id": "a", "topic": TOPIC, "delay": 60, "TTR": 30, "body": None, "on_conflict": mode}
    assert client.post("/api/queue/", add).json()["success"] is (status == 200)


def test_more_jobs_than_the_limit_are_refused_for_good(make_token: Any, api: Any) -> None:
    answer = api(make_token(max_live_jobs=2)).post("/api/jobs/", {"jobs": [new("a"), new("b"), new("c")]})
    assert (answer.status_code, "Retry-After" in answer.headers) == (429, False)
    check_response("POST", "/api/jobs/", answer)
    detail = "The token may have at most 2 live jobs: 3 in one request are refused. Send fewer."
    assert answer.json()["detail"] == detail


def test_requests_in_progress_count(make_token: Any) -> None:
    make_token(max_live_jobs=10)
    limited = caller()
    with live_jobs.reserve_room(limited, 6, "default"):
        with pytest.raises(live_jobs.ProblemError), live_jobs.reserve_room(limited, 6, "default"):
            pass
        with live_jobs.reserve_room(limited, 4, "default"):
            pass
    live_jobs._counts.clear()
    with live_jobs.reserve_room(limited, 10, "default"):
        pass
    assert not live_jobs._pending


def test_a_request_that_fails_is_no_longer_in_progress(make_token: Any) -> None:
    make_token(max_live_jobs=10)
    with pytest.raises(ValueError, match="failed"), live_jobs.reserve_room(caller(), 6, "default"):
        raise ValueError("failed")
    assert not live_jobs._pending


def test_near_the_limit_not_each_request_counts(make_token: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_token(max_live_jobs=10_000)
    counted: list[str] = []
    monkeypatch.setattr(live_jobs, "_live", lambda producer, most, using: counted.append(producer) or 9_985)
    for _ in range(10):
        live_jobs.take(caller(), 1, "default")
    assert len(counted) == 1


def test_a_count_for_one_token_delays_no_other(make_token: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick = (make_token(account) and caller() for account in ("slow", "quick"))
    begun, go_on = threading.Event(), threading.Event()

    def live(producer: str, most: int, using: str) -> int:
        if producer == slow.producer:
            begun.set()
            assert go_on.wait(10)
        return 0

    monkeypatch.setattr(live_jobs, "_live", live)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(live_jobs.take, slow, 1, "default")
        assert begun.wait(10)
        try:
            pool.submit(live_jobs.take, quick, 1, "default").result(5)
        finally:
            go_on.set()
        first.result(10)
    assert {slow.producer, quick.producer}.isdisjoint(live_jobs._counting), "no lock is kept"


@pytest.mark.django_db(transaction=True)
def test_jobs_that_receivers_schedule_do_not_count(make_token: Any, api: Any) -> None:
    def schedule_more(job: Job, **_: object) -> None:
        if job.key == "a":
            delaytasks.schedule(TOPIC, key="more", delay=60)

    client = api(make_token())
    job_scheduled.connect(schedule_more)
    try:
        assert added(client, "a") == [201]
    finally:
        job_scheduled.disconnect(schedule_more)
    prefix = Token.objects.get().prefix
    assert dict(Job.objects.values_list("key", "producer")) == {"a": prefix, "more": None}


@pytest.mark.on_both
def test_jobs_that_a_schedule_makes_later_count(make_token: Any, api: Any) -> None:
    client = api(make_token(max_live_jobs=2))
    terms = {"name": "report", "topic": TOPIC, "every_seconds": 3600}
    assert client.post("/api/schedules/", terms).status_code == 201
    since = timezone.now() - timedelta(hours=3)
    Schedule.objects.update(start_at=since, made_until=since)
    assert maker.make_due("default") >= 2
    assert set(Job.objects.values_list("producer", flat=True)) == {Token.objects.get().prefix}
    live_jobs.clear_cache()
    assert added(client, "a") == [429]
