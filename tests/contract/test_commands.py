"""manage.py delaytasks <verb>, as a shell sees it: what it prints, and its exit code."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from delaytasks import bells, dialect, schedule, statements, topics
from delaytasks.clock import from_ms
from delaytasks.management.commands.delaytasks import VERBS, Command
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.statements import Ending
from delaytasks.states import Outcome, State

TOPIC = "test.close"
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Run(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a verb as manage.py does; a traceback is a failure of the test."""

    def run_verb(*argv: object) -> Run:
        code = 0
        try:
            Command().run_from_argv(["manage.py", "delaytasks", *map(str, argv)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Run(code, out, err)

    return run_verb


@pytest.fixture(autouse=True)
def _topic(db_clock: Any) -> Iterator[None]:
    topics.handler(TOPIC, ttr=60, max_attempts=1)(lambda job: None)
    yield
    topics.forget(TOPIC)


def job(key: str = "order:1", *, delay: float = 600, **more: Any) -> Job:
    return schedule(TOPIC, key=key, delay=delay, **more)


def reserve(*jobs: Job) -> None:
    taken = statements.claim("default", TOPIC, [each.pk for each in jobs], "w1")
    assert len(taken) == len(jobs)


def end(found: Job, state: State, error: str = "") -> None:
    reserve(found)
    statements.end_if_held("default", [Ending(found.pk, 1, int(state), None, int(state is State.DEAD), error)])


def state_of(found: Job) -> State:
    return State(Job.objects.get(pk=found.pk).state)


# schedule


def test_schedule_makes_a_job_and_says_when_it_is_due(run):
    done = run("schedule", TOPIC, "order:1", "--delay", "600", "--body", '{"order": 1}', "--ttr", "5")
    assert (done.code, done.err) == (0, "")
    assert "scheduled: job" in done.out
    assert "in 10 min" in done.out
    made = Job.objects.get()
    assert (made.key, made.body, made.ttr_ms) == ("order:1", {"order": 1}, 5000)


def test_schedule_takes_a_time_with_a_zone(run):
    assert run("schedule", TOPIC, "order:1", "--due", "2030-06-01T12:00:00.250+02:00").code == 0
    assert Job.objects.get().due_at.isoformat() == "2030-06-01T10:00:00.250000+00:00"


def test_schedule_answers_with_json(run):
    data = run("schedule", TOPIC, "order:1", "--delay", "1.5", "--json").data
    assert data["result"] == "scheduled"
    assert data["job"]["due_at"] == "2030-01-01T00:00:01.500Z"
    assert data["job"]["state"] == "delayed"


def test_a_live_key_is_refused_kept_or_replaced(run):
    first = job()
    refused = run("schedule", TOPIC, "order:1", "--delay", "5")
    assert refused.code == 1
    assert "is live already" in refused.err
    assert run("schedule", TOPIC, "order:1", "--delay", "5", "--on-conflict", "keep", "--json").data["result"] == "kept"
    assert Job.objects.get().due_at == first.due_at
    replaced = run("schedule", TOPIC, "order:1", "--delay", "5", "--on-conflict", "replace", "--json").data
    assert replaced["result"] == "replaced"
    assert replaced["job"]["due_at"] == "2030-01-01T00:00:05.000Z"


@pytest.mark.parametrize(
    "argv",
    [
        ["schedule", TOPIC, "order:1"],
        ["schedule", TOPIC, "order:1", "--delay", "5", "--due", "2030-01-01T00:00Z"],
        ["schedule", TOPIC, "order:1", "--delay", "soon"],
        ["schedule", TOPIC, "order:1", "--delay", "nan"],
        ["schedule", TOPIC, "order:1", "--delay=-1"],
        ["schedule", TOPIC, "order:1", "--delay", "1e300"],
        ["schedule", TOPIC, "order:1", "--due", "2030-01-01T00:00"],
        ["schedule", TOPIC, "order:1", "--due", "tomorrow"],
        ["schedule", TOPIC, "order:1", "--delay", "5", "--body", "{order: 1}"],
        ["schedule", TOPIC, "order:1", "--delay", "5", "--body", "NaN"],
        ["schedule", TOPIC, "order:1", "--delay", "5", "--ttr", "0"],
        ["schedule", TOPIC, "order:1", "--delay", "5", "--on-conflict", "ignore"],
        ["schedule", TOPIC, "", "--delay", "5"],
        ["schedule", TOPIC, "x" * 256, "--delay", "5"],
        ["schedule", "test.unknown", "order:1", "--delay", "5"],
        ["schedule", "no spaces", "order:1", "--delay", "5"],
        ["schedule", TOPIC],
        ["list", "--limit", "0"],
        ["list", "--limit", "many"],
        ["list", "--state", "sleeping"],
        ["list", "--due-before", "2030-01-01T00:00"],
        ["show"],
        ["show", "one", "two", "three"],
        ["show", "order:1"],
        ["cancel", "9" * 30],
        ["reschedule", TOPIC, "order:1"],
        ["reschedule", TOPIC, "order:1", "--delay", "inf"],
        ["stats", "--database", "nowhere"],
        ["explode"],
        [],
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_2_with_a_sentence_and_changes_nothing(run, argv):
    before = list(Job.objects.values())
    done = run(*argv)
    assert done.code == 2
    assert done.err.strip()
    assert list(Job.objects.values()) == before


# cancel, reschedule, run-now, retry


def test_cancel_says_cancelled_and_only_then_is_0(run):
    found = job()
    done = run("cancel", TOPIC, "order:1")
    assert (done.code, done.out, done.err) == (0, "cancelled\n", "")
    assert state_of(found) is State.CANCELLED


@pytest.mark.parametrize("by_id", [True, False])
def test_cancel_tells_the_truth_about_what_it_could_not_cancel(run, by_id):
    def target(found: Job) -> list[object]:
        return [found.pk] if by_id else [TOPIC, found.key]

    running, finished = job("a", delay=0), job("b", delay=0)
    reserve(running)
    end(finished, State.FINISHED)
    assert run("cancel", *target(running))[:2] == (1, "running\n")
    assert run("cancel", *target(finished))[:2] == (1, "already finished\n")
    unknown = run("cancel", 999) if by_id else run("cancel", TOPIC, "nobody")
    assert unknown[:2] == (1, "unknown\n")
    assert "was not cancelled" in unknown.err


def test_cancel_with_json_is_one_document_even_when_refused(run):
    done = run("cancel", TOPIC, "order:1", "--json")
    assert done.code == 1
    assert done.data == {"topic": TOPIC, "key": "order:1", "result": "unknown"}


@pytest.mark.parametrize("by_id", [True, False])
def test_reschedule_moves_a_job(run, by_id):
    found = job()
    target = [found.pk] if by_id else [TOPIC, "order:1"]
    done = run("reschedule", *target, "--delay", "60", "--json")
    assert done.code == 0
    assert done.data["job"]["due_at"] == "2030-01-01T00:01:00.000Z"


@pytest.mark.parametrize("verb", [["reschedule", "--delay", "5"], ["run-now"]])
def test_what_runs_or_is_gone_is_not_moved(run, verb):
    reserve(job(delay=0))
    running = run(verb[0], TOPIC, "order:1", *verb[1:])
    assert running.code == 1
    assert "its handler is running" in running.err
    gone = run(verb[0], TOPIC, "nobody", *verb[1:], "--json")
    assert gone.code == 1
    assert gone.data["error"] == "NotLive"
    assert "is not live" in gone.data["message"]


@pytest.mark.parametrize("by_id", [True, False])
def test_run_now_makes_a_job_ready(run, by_id):
    found = job()
    done = run("run-now", *([found.pk] if by_id else [TOPIC, "order:1"]), "--json")
    assert done.code == 0
    assert done.data["job"]["state"] == "ready"


@pytest.mark.parametrize("by_id", [True, False])
def test_retry_makes_a_dead_job_ready_again(run, by_id):
    found = job(delay=0)
    end(found, State.DEAD, "ValueError: no")
    done = run("retry", *([found.pk] if by_id else [TOPIC, "order:1"]), "--json")
    assert done.code == 0
    assert done.data["job"] | {"failures": 0, "state": "ready"} == done.data["job"]


def test_only_the_dead_are_retried(run):
    done = run("retry", job().pk)
    assert done.code == 1
    assert "Only a dead job can be retried" in done.err


def test_the_history_names_the_shells_user_or_whoever_is_said(run, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    run("run-now", job("a").pk)
    run("run-now", job("b").pk, "--by", "release 7")
    assert list(JobEvent.objects.order_by("id").values_list("actor", flat=True)) == ["command:anna", "release 7"]


def test_a_user_without_a_name_is_named_by_number(run, monkeypatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert run("cancel", job().pk).code == 0
    assert re.fullmatch(r"command:\d+", JobEvent.objects.get().actor)


# list, show, stats


@pytest.fixture
def some(db_clock: Any) -> dict[str, Job]:
    found = {key: job(key, delay=0) for key in ("finished", "dead", "reserved", "ready")}
    db_clock.advance(ms=1)
    found["delayed"] = job("delayed", delay=600)
    found["cancelled"] = job("cancelled", delay=900)
    end(found["finished"], State.FINISHED)
    end(found["dead"], State.DEAD, "Traceback\nValueError: no such bank")
    reserve(found["reserved"])
    statements.cancel_delayed("default", found["cancelled"].pk)
    return found


def keys(done: Run) -> list[str]:
    return [each["key"] for each in done.data["jobs"]]


@pytest.mark.parametrize("state", list(State))
def test_list_finds_jobs_by_the_state_that_people_see(run, some, state):
    done = run("list", "--state", state.word, "--json")
    assert keys(done) == [state.word]
    assert done.data["jobs"][0]["state"] == state.word


def test_list_shows_all_newest_first_and_live_ones_by_due_time(run, some):
    assert keys(run("list", "--json")) == ["cancelled", "delayed", "ready", "reserved", "dead", "finished"]
    assert keys(run("list", "--state", "live", "--json"))[-1] == "delayed"


def test_list_narrows_by_topic_key_and_due_time(run, some):
    Topic.objects.get_or_create(name="mail.send")
    schedule("mail.send", key="delayed:mail", delay=1200)
    assert keys(run("list", "--topic", "mail.send", "--json")) == ["delayed:mail"]
    assert keys(run("list", "--key-prefix", "delayed", "--json")) == ["delayed:mail", "delayed"]
    assert keys(run("list", "--key-prefix", "delayed", "--topic", TOPIC, "--json")) == ["delayed"]
    assert keys(run("list", "--due-after", "2030-01-01T00:05Z", "--json")) == ["delayed", "delayed:mail"]
    assert keys(run("list", "--due-before", "2030-01-01T00:05Z", "--json")) == ["reserved", "ready"]


def test_list_says_when_there_are_more(run, some):
    done = run("list", "--limit", "2", "--json")
    assert (len(done.data["jobs"]), done.data["more"]) == (2, True)
    assert "There are more than 2" in run("list", "--limit", "2").out
    assert run("list", "--limit", "6", "--json").data["more"] is False


def test_list_is_aligned_for_people(run, some):
    lines = run("list").out.splitlines()
    assert len(lines) == 7
    column = lines[0].index("state")
    assert {line[column:].split()[0] for line in lines[1:]} == {state.word for state in State}
    assert "in 10 min" in lines[2]
    assert lines[5].endswith("ValueError: no such bank")


def test_an_empty_list_is_0_and_says_so(run):
    assert run("list")[:2] == (0, "No jobs.\n")


def test_a_terminal_obeys_nothing_that_is_stored(run):
    found = job(delay=0)
    end(found, State.DEAD, "\x1b[2Jgone\x07")
    for argv in (["list"], ["show", found.pk]):
        out = run(*argv).out
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "gone" in out


def test_show_tells_everything_about_a_job(run, db_clock):
    found = job(body={"order": 1}, delay=0)
    db_clock.advance(ms=12)
    reserve(found)
    db_clock.advance(ms=340)
    event = statements.Event(found.pk, Outcome.FAILED, 1, found.due_ms, db_clock.now_ms, found.due_ms + 12,
                             worker="w1", error="Traceback\nValueError: no")  # fmt: skip
    statements.record("default", [event])
    for target in ([found.pk], [TOPIC, "order:1"]):
        done = run("show", *target, "--json")
        assert done.code == 0
        assert done.data["body"] == {"order": 1}
        (told,) = done.data["events"]
        assert (told["outcome"], told["attempt"], told["late_ms"], told["ran_ms"]) == ("failed", 1, 12, 340)
        assert told["error"] == "Traceback\nValueError: no"
        assert RFC3339.fullmatch(told["done_at"])
    text = run("show", found.pk).out
    assert re.search(r"^due +2030-01-01 00:00:00.000 \(now\)$", text, re.MULTILINE)
    assert re.search(r"failed +1 +12 +340 +w1 +ValueError: no$", text, re.MULTILINE)


def test_show_prefers_the_live_job_of_a_key(run):
    dead = job(delay=0)
    end(dead, State.DEAD)
    assert run("show", TOPIC, "order:1", "--json").data["id"] == dead.pk
    newer = job(delay=0)
    end(newer, State.FINISHED)
    assert run("show", TOPIC, "order:1", "--json").data["id"] == newer.pk
    assert run("retry", dead.pk).code == 0
    assert run("show", TOPIC, "order:1", "--json").data["id"] == dead.pk


@pytest.mark.parametrize("target", [["999"], [TOPIC, "nobody"]])
def test_show_of_nothing_is_1(run, target):
    done = run("show", *target)
    assert done.code == 1
    assert "No job has the" in done.err


def test_stats_count_each_topic(run, some):
    data = run("stats", "--json").data
    assert {word: data["topics"][TOPIC][word] for word in ("delayed", "ready", "reserved", "dead")} == {
        "delayed": 1, "ready": 1, "reserved": 1, "dead": 1,
    }  # fmt: skip
    assert data["mirror"] == "off"
    text = run("stats").out
    assert re.search(rf"^{re.escape(TOPIC)} +1 +1 +1 +1 ", text, re.MULTILINE)
    assert re.search(r"^mirror +off$", text, re.MULTILINE)


def test_stats_of_a_fresh_database_are_0(run):
    assert run("stats").code == 0


# move, sweep, rebuild, audit


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that bells were rung for."""
    from delaytasks import tasks

    rang: list[str] = []
    monkeypatch.setattr(tasks, "ring", lambda using, topic, queue: rang.append(topic))
    tasks.bells.cache_clear()
    bells.forget_terms()
    yield rang
    tasks.bells.cache_clear()


@pytest.mark.parametrize("flags", [[], ["--until-idle"]])
def test_move_rings_for_what_is_due(run, rung, places, flags):
    job(delay=0)
    done = run("move", *flags, "--json")
    assert done.code == 0
    assert rung == [TOPIC]
    assert done.data["passes"] >= 1
    assert done.data["rest_ms"] > 0


def test_move_until_idle_goes_on_while_there_is_more(run, rung, with_redis, settings, monkeypatch):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "PROMOTE_LIMIT": 1, "BUCKETS": 1}
    for number in range(5):
        job(f"order:{number}", delay=0)
    assert run("move", "--json").data == {"passes": 1, "rest_ms": 0}
    assert run("move", "--until-idle", "--json").data["passes"] >= 4


def test_sweep_takes_back_what_outlived_its_ttr(run, places, db_clock):
    found = job(delay=0)
    reserve(found)
    db_clock.advance(seconds=61)
    done = run("sweep", "--json")
    assert done.code == 0
    assert done.data["expired"] == 1
    assert state_of(found) is State.DEAD
    assert re.search(r"^expired +0$", run("sweep").out, re.MULTILINE)


def test_audit_without_a_mirror_has_nothing_to_compare(run):
    done = run("audit")
    assert done.code == 0
    assert "No Redis is configured" in done.out
    assert run("rebuild", "--json").data == {"fed_entries": 0, "mirror": "off"}


def test_audit_check_is_1_when_something_is_wrong_and_repairs_nothing(run, with_redis, redis_server):
    job("order:1", delay=60)
    assert run("audit", "--check").code == 0
    forget_everything(redis_server, with_redis["PREFIX"])
    for _ in range(2):
        done = run("audit", "--check", "--json")
        assert done.code == 1
        assert done.data["missing"] == 1


def test_audit_repairs_and_is_0_when_nothing_is_left(run, with_redis, redis_server):
    job("order:1", delay=60)
    forget_everything(redis_server, with_redis["PREFIX"])
    done = run("audit", "--json")
    assert done.code == 0
    assert done.data["missing"] == 1
    assert done.data["left"] == {"missing": 0, "ghosts": 0, "late": 0, "doubled": 0}
    assert run("audit", "--check").code == 0


def test_rebuild_feeds_the_mirror_again(run, with_redis, redis_server):
    job("order:1", delay=60)
    job("order:2", delay=60)
    forget_everything(redis_server, with_redis["PREFIX"])
    assert run("rebuild", "--json").data == {"fed_entries": 2, "mirror": "up"}


def test_a_redis_that_does_not_answer_is_1_with_a_sentence(run, settings):
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/0", "REDIS_TIMEOUT_SECONDS": 0.2}
    for verb in ("rebuild", "audit"):
        done = run(verb, "--json")
        assert done.code == 1
        assert done.data["error"] == "MirrorDown"
    assert run("stats", "--json").data["mirror"] == "down"
    assert run("sweep").code == 0, "the database's part is done without Redis"


def forget_everything(redis_server: Any, prefix: str) -> None:
    with redis_server.client() as client:
        for key in client.scan_iter(f"*{prefix}*"):
            client.delete(key)


# All of them


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_explains_itself(run, verb):
    done = run(verb, "--help")
    assert done.code == 0
    assert "--json" in done.out
    assert "--database" in done.out
    assert " ".join(VERBS[verb].help.split()[:3]) in " ".join(done.out.split())


@pytest.mark.parametrize("verb", ["stats", "list", "move", "sweep", "rebuild", "audit"])
def test_the_database_can_be_named(run, verb, rung):
    assert run(verb, "--database", "default").code == 0


def test_all_times_in_json_are_rfc_3339_in_utc(run, settings, some):
    settings.TIME_ZONE = "Asia/Tokyo"
    for each in run("list", "--json").data["jobs"]:
        for name, value in each.items():
            if name.endswith(("_at", "_until")) and value is not None:
                assert RFC3339.fullmatch(value)
    assert Job.objects.get(key="delayed").due_at - from_ms(int(dialect.now_ms("default"))) == timedelta(minutes=10)


def test_a_missing_table_is_1_with_advice(run, monkeypatch):
    from django.db import ProgrammingError

    def no_table(*_: Any, **__: Any) -> None:
        raise ProgrammingError('relation "delaytasks_job" does not exist')

    monkeypatch.setattr("delaytasks.metrics.snapshot", no_table)
    done = run("stats")
    assert done.code == 1
    assert "manage.py migrate" in done.err
