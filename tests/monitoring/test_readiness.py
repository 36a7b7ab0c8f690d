"""Health checks, the probes over HTTP and `delaytasks health`: which part has failed, and what to do."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections
from django.test import Client
from django.urls import include, path

from delaytasks import clock, schedule, tasks
from delaytasks.exceptions import MirrorDown
from delaytasks.mirror import connect as connect_mirror
from delaytasks.models import MirrorMark, Topic
from delaytasks.monitoring import cache as stats_cache
from delaytasks.monitoring import health as health_module
from delaytasks.monitoring import readiness
from delaytasks.monitoring.advice import ADVICE, Problem
from delaytasks.monitoring.readiness import State
from delaytasks.monitoring.views import metrics

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def alive(stage: Any, db_clock: Any) -> None:
    """A mover and a sweep that have just been seen."""
    MirrorMark.objects.update_or_create(pk=1, defaults=dict.fromkeys(("heartbeat_at", "swept_at"), now(db_clock)))


def now(db_clock: Any, seconds_ago: float = 0) -> Any:
    return clock.from_ms(db_clock.now_ms - round(seconds_ago * 1000))


def states() -> dict[str, str]:
    cache.clear()
    return {check.name: str(check.state) for check in readiness.run()}


def failing() -> list[str]:
    return [name for name, state in states().items() if state == State.FAILING]


def test_an_installation_at_work_is_ok(alive):
    assert states() == dict.fromkeys(readiness.NAMES, "ok")


def test_a_new_installation_says_that_nothing_runs_yet(stage):
    MirrorMark.objects.all().delete()
    assert failing() == ["workers", "mover", "beat"]


def test_when_all_workers_are_dead_the_checks_say_so(alive, db_clock):
    db_clock.advance(seconds=121)
    assert failing() == ["workers", "mover", "beat"]
    [workers] = readiness.run(names=["workers"])
    assert workers.message == "no sign of a worker for 2 min"


def test_when_beat_alone_is_dead_the_workers_are_alive(alive, db_clock):
    db_clock.advance(seconds=121)
    MirrorMark.objects.update(heartbeat_at=now(db_clock))
    assert failing() == ["beat"]


def test_when_the_mover_alone_is_dead_the_workers_are_alive(alive, db_clock):
    db_clock.advance(seconds=31)
    assert failing() == ["mover"]


def test_beat_may_miss_three_sweeps(alive, db_clock, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "SWEEP_SECONDS": 60}
    db_clock.advance(seconds=239)
    assert "beat" not in failing()
    db_clock.advance(seconds=1)
    assert "beat" in failing()


def test_a_sweep_that_beat_sends_records_that_beat_and_a_worker_are_alive(stage, db_clock):
    tasks.sweep()
    assert MirrorMark.objects.get().swept_at == now(db_clock)


def test_a_job_that_waits_too_long_fails_and_its_topic_is_named(alive, db_clock, settings):
    stage_topic = "slow.topic"
    settings.DELAYTASKS = {**settings.DELAYTASKS, "HEALTH_READY_SECONDS": 60, "TOPICS": {stage_topic: {}}}
    schedule(stage_topic, "a", delay=0)
    db_clock.advance(seconds=29)
    assert "ready" not in failing()
    db_clock.advance(seconds=31)
    MirrorMark.objects.update(heartbeat_at=now(db_clock))
    assert failing() == ["ready"]
    [ready] = readiness.run(names=["ready"])
    assert ready.message == "the oldest ready job has waited for 1 min (topic slow.topic)"


def test_jobs_of_a_paused_topic_may_wait(alive, db_clock, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"t": {}}}
    schedule("t", "a", delay=0)
    Topic.objects.update_or_create(name="t", defaults={"paused": True})
    db_clock.advance(seconds=3600)
    assert "ready" not in failing()
    [ready] = readiness.run(names=["ready"])
    assert ready.message == "no job waits for a worker"


def test_without_redis_the_mirror_is_degraded_and_nothing_fails(alive, with_redis, redis_server):
    redis_server.stop()
    assert states()["mirror"] == "degraded"
    assert failing() == []


def test_a_redis_that_refuses_writes_is_a_degraded_mirror_and_the_check_says_why(alive, with_redis, redis_server):
    with redis_server.full():
        assert states()["mirror"] == "degraded"
        assert failing() == []
        with pytest.raises(MirrorDown):  # after that, Redis is not called for a moment
            connect_mirror()._redis.ask(lambda client: client.set("a", 1))
        cache.clear()
        [mirror] = readiness.run(names=["mirror"])
        connect_mirror()._redis.breaker.reset()
    assert mirror.message.startswith("Redis refuses writes: command not allowed when used memory > 'maxmemory'")
    assert "raise its maxmemory" in mirror.advice
    assert mirror.advice.endswith("See docs/howto/runbook.md#mirror.")
    assert states()["mirror"] == "ok"


def test_each_check_that_is_not_ok_says_what_to_do_and_has_a_section_in_the_runbook(stage):
    MirrorMark.objects.all().delete()
    wrong = [check for check in readiness.run() if check.state is not State.OK]
    assert [check.name for check in wrong] == ["workers", "mover", "beat"]
    assert all(check.advice.endswith(f" See docs/howto/runbook.md#{check.name}.") for check in wrong)
    headings = re.findall(r"^## `(\w+)`", (DOCS / "howto/runbook.md").read_text(), re.MULTILINE)
    assert set(readiness.NAMES) <= set(headings)


def test_each_advice_names_a_section_of_the_runbook():
    headings = re.findall(r"^## `?([\w ]+)`?$", (DOCS / "howto/runbook.md").read_text(), re.MULTILINE)
    sections = {heading.lower().replace(" ", "-") for heading in headings}
    assert set(ADVICE) == set(Problem)
    assert {each.section for each in ADVICE.values()} <= sections


# A database that does not answer


@pytest.fixture
def _no_database(alive: None) -> Iterator[None]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("connection refused")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections["default"], "cursor", refuse)
        yield


@pytest.mark.usefixtures("_no_database")
def test_without_its_database_only_the_database_fails_and_the_rest_is_unknown():
    assert states() == {"database": "failing"} | dict.fromkeys(readiness.NAMES[1:], "unknown")


@pytest.mark.usefixtures("_no_database")
@pytest.mark.parametrize("name", readiness.NAMES[1:])
def test_a_check_that_needs_the_database_does_not_succeed_without_it(client: Client, capsys, name):
    answer = client.get(f"/readyz?check={name}")
    assert (answer.status_code, answer.json()) == (503, {"status": "unknown", "checks": {name: "unknown"}})
    code, out = health(capsys, "--check", name)
    assert (code, f"Unknown: {name}. See docs/howto/runbook.md." in out) == (1, True)


@pytest.mark.usefixtures("_no_database")
def test_a_pool_without_a_database_is_not_asked_for_its_own_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "POOL_SECONDS", 0.1)
    options = {"pool": {"min_size": 1, "timeout": 60}}
    away = {**connections["default"].settings_dict, "ENGINE": "django.db.backends.postgresql", "HOST": str(tmp_path)}
    connections.settings["away"] = {**away, "NAME": "away", "CONN_MAX_AGE": 0, "OPTIONS": options}
    try:
        began = time.monotonic()
        assert not readiness.database_answers("away")
        assert time.monotonic() - began < 20
    finally:
        connections["away"].close_pool()
        del connections["away"], connections.settings["away"]


def test_the_process_is_live_without_its_database(client: Client):
    assert client.get("/livez").json() == {"status": "ok"}


urlpatterns = [path("metrics", metrics), path("", include("delaytasks.monitoring.urls"))]


@pytest.mark.parametrize(("address", "status"), [("/livez", 200), ("/readyz", 503), ("/metrics", 200)])
def test_the_probes_answer_without_the_database_also_with_atomic_requests(alive, client, settings, address, status):
    settings.ROOT_URLCONF = __name__
    connections.close_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
        patch.setitem(connections.settings["default"], "NAME", "/there/is/no/such/database")
        assert client.get(address).status_code == status


@pytest.mark.usefixtures("_no_database")
def test_readiness_without_the_database_is_503_and_no_error_in_the_log(client: Client, caplog):
    client.cookies["sessionid"] = "of-a-user"
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["database"]) == (503, "failing")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.only_on("postgresql")
def test_a_locked_table_of_jobs_fails_the_probe_soon_and_the_last_answer_does_not_count(alive, client, monkeypatch):
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(health_module, "FRESH_SECONDS", 0)
    monkeypatch.setattr(stats_cache, "FRESH_PER_COMPUTE_SECOND", 0)
    with connections["default"].copy().cursor() as cursor, monkeypatch.context() as patch:
        patch.setattr(health_module, "STATEMENT_MS", 50)  # too short for the last answer on a busy machine
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE delaytasks_job")
        answers = [client.get("/readyz") for _ in range(2)]
        cursor.connection.close()
    assert [answer.status_code for answer in answers] == [503, 503]
    with connections["default"].cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)
    assert client.get("/readyz").status_code == 200


# Over HTTP


def test_readyz_tells_states_and_neither_topics_nor_numbers(alive, client, db_clock, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"secret.topic": {}}}
    schedule("secret.topic", "a", delay=0)
    db_clock.advance(seconds=3600)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["ready"]) == (503, "failing")
    assert "secret" not in answer.text
    assert not re.search(r"\d", answer.text)
    assert "no-store" in answer.headers["Cache-Control"]


def test_a_web_process_is_ready_when_its_database_answers_even_without_workers(stage, client):
    MirrorMark.objects.all().delete()
    assert client.get("/readyz").status_code == 503
    assert client.get("/readyz?check=database").json() == {"status": "ok", "checks": {"database": "ok"}}


def test_an_unknown_check_is_refused(client):
    answer = client.get("/readyz?check=databse")
    assert answer.status_code == 400
    assert "Known checks: database, workers, mover, beat, ready, mirror, schedules." in answer.json()["error"]


def test_a_probe_of_one_database_does_not_ask_the_others(stage, client, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["default", "away"]}
    connections.settings["away"] = {**connections.settings["default"], "NAME": "/there/is/no/such/database"}
    try:
        assert client.get("/readyz?check=database").status_code == 503
        assert client.get("/readyz?check=database&database=default").status_code == 200
        assert client.get("/readyz?check=database&database=away").status_code == 503
    finally:
        del connections["away"], connections.settings["away"]
    answer = client.get("/readyz?database=dfault")
    assert (answer.status_code, answer.json()) == (400, {"error": "Unknown database 'dfault'."})


def test_the_probes_read_no_session_and_no_user(alive, client, django_assert_max_num_queries):
    client.cookies["sessionid"] = "of-a-user"
    with django_assert_max_num_queries(1) as queries:
        client.get("/readyz?check=database")
    assert [query["sql"] for query in queries.captured_queries] == ["SELECT 1"]


# The command


def health(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = 0
    try:
        call_command("delaytasks", "health", *arguments)
    except CommandError as error:
        code = error.returncode
        print(error)
    return code, capsys.readouterr().out


def test_health_ends_with_0_while_nothing_fails(alive, capsys):
    code, out = health(capsys)
    assert code == 0
    assert re.search(r"^beat +ok +last sweep 0 ms ago$", out, re.MULTILINE)


def test_health_ends_with_1_and_says_what_to_do(alive, db_clock, capsys):
    db_clock.advance(seconds=121)
    code, out = health(capsys)
    assert code == 1
    assert "Start beat. If it runs, its messages do not arrive" in out
    assert "Failing: workers, mover, beat. See docs/howto/runbook.md." in out


def test_health_of_some_checks_as_json(stage, capsys):
    MirrorMark.objects.all().delete()
    code, out = health(capsys, "--check", "database", "--check", "mirror", "--json")
    assert code == 0
    assert [each["name"] for each in json.loads(out)["checks"]] == ["database", "mirror"]


def test_stats_show_the_checks(alive, capsys):
    call_command("delaytasks", "stats", "--json")
    assert json.loads(capsys.readouterr().out)["health"] == dict.fromkeys(readiness.NAMES, "ok")
