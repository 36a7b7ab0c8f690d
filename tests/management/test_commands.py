"""manage.py delaytasks <verb>: output and exit codes."""

import io
import json
import os
import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.utils import timezone
from django.utils.translation import override

from delaytasks import cancel, handlers, schedule, topics
from delaytasks.clock import from_ms
from delaytasks.db import dialects, transitions
from delaytasks.db.transitions import Ending, Event
from delaytasks.exceptions import MirrorDown
from delaytasks.jobs import audit_log
from delaytasks.maintenance import retention
from delaytasks.management.commands.delaytasks import VERBS, Command
from delaytasks.models import AuditEntry, Job, JobEvent, Topic
from delaytasks.states import Outcome, State
from delaytasks.worker import dispatch

TOPIC = "test.close"
BYTES = "\udcff"  # an argument that is the byte 0xff
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
    """Run a verb as manage.py does; a traceback fails the test."""

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
def _topic(transactional_db: None, db_clock: Any) -> Iterator[None]:
    handlers.handler(TOPIC, ttr=60, max_attempts=1)(lambda job: None)
    yield
    handlers.unregister(TOPIC)


def job(key: str = "order:1", *, delay: float = 600, **more: Any) -> Job:
    return schedule(TOPIC, key=key, delay=delay, **more)


def reserve(*jobs: Job) -> None:
    taken = transitions.claim("default", TOPIC, [each.pk for each in jobs], "w1")
    assert len(taken) == len(jobs)


def end(found: Job, state: State, error: str = "") -> None:
    reserve(found)
    transitions.end_if_held(
        "default", [Ending(found.pk, 1, int(state), None, int(state is State.DEAD), error, worker="w1")]
    )


def state_of(found: Job) -> State:
    return State(Job.objects.get(pk=found.pk).state)


# schedule


def test_schedule_creates_a_job_and_prints_its_due_time(run):
    done = run("schedule", TOPIC, "order:1", "--delay", "600", "--body", '{"order": 1}', "--ttr", "5",
               "--expires", "60", "--priority", "4")  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert "scheduled: job" in done.out
    assert "in 10 min" in done.out
    made = Job.objects.get()
    assert (made.key, made.body, made.ttr_ms, made.priority) == ("order:1", {"order": 1}, 5000, 4)


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
    assert "Use --on-conflict 'keep', 'replace' or 'again'" in refused.err
    assert run("schedule", TOPIC, "order:1", "--delay", "5", "--on-conflict", "keep", "--json").data["result"] == "kept"
    assert Job.objects.get().due_at == first.due_at
    replaced = run("schedule", TOPIC, "order:1", "--delay", "5", "--on-conflict", "replace", "--json").data
    assert replaced["result"] == "replaced"
    assert replaced["job"]["due_at"] == "2030-01-01T00:00:05.000Z"


def test_a_running_job_is_scheduled_again(run):
    now = timezone.now()
    job()
    Job.objects.update(state=State.RESERVED, attempt=1, lease_until=now, reserved_at=now)
    again = run("schedule", TOPIC, "order:1", "--delay", "5", "--on-conflict", "again", "--json").data
    assert again["result"] == "scheduled again"
    assert Job.objects.get().again


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
        ["list", "--due-before", "0001-01-01T00:00+14:00"],
        ["list", "--due-before", "9999-12-31T23:59:59.999999Z"],
        ["schedule", TOPIC, "order:1", "--due", "9999-12-31T23:59-14:00"],
        ["audit-log", "--since", "0001-01-01T00:00+14:00"],
        ["audit-log", "--since", "999999w"],
        ["prune", "--older-than", "999999d"],
        ["prune", "--older-than", "999999d", "--json"],
        ["show", TOPIC, BYTES],
        ["list", "--key-prefix", BYTES],
        ["cancel", BYTES, "order:1"],
        ["schedule", TOPIC, BYTES, "--delay", "5"],
        ["schedule", TOPIC, "order:1", "--delay", "5", "--by", BYTES],
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
    ids=lambda argv: ascii(" ".join(argv)),
)
def test_usage_error_exits_with_2_and_changes_nothing(run, argv):
    before = list(Job.objects.values())
    done = run(*argv)
    assert done.code == 2
    assert done.err.strip()
    assert list(Job.objects.values()) == before


@pytest.mark.parametrize("verb", [["schedule", TOPIC, "order:1", "--delay", "5"], ["cancel", TOPIC, "order:1"]])
def test_text_that_is_not_utf_8_is_refused_with_a_sentence(run, verb):
    done = run(*verb, "--by", BYTES)
    assert (done.code, done.err) == (2, "CommandError: '\\udcff' is not UTF-8.\n")


def test_a_number_of_thousands_of_digits_is_refused_with_the_limits(run):
    done = run("list", "--limit", "1" * 5_000)
    assert done.code == 2
    assert "is not a whole number from 1 to 100000" in done.err


def test_a_body_with_too_many_brackets_is_refused(run):
    done = run("schedule", TOPIC, "order:1", "--delay", "5", "--body", "[" * 100_000)
    assert done.code == 2
    assert "not JSON: too many brackets in brackets" in done.err


@pytest.mark.parametrize("argv", [["show", "one", "two", "three"], ["prune"], ["show", TOPIC, BYTES]], ids=ascii)
def test_a_usage_error_found_by_a_command_is_written_as_json(run, argv):
    done = run(*argv, "--json")
    assert (done.code, done.data["error"]) == (2, "CommandError")
    assert done.err == f"CommandError: {done.data['message']}\n"


# cancel, reschedule, run-now, retry


def test_cancel_exits_with_0_only_if_cancelled(run):
    found = job()
    done = run("cancel", TOPIC, "order:1")
    assert (done.code, done.out, done.err) == (0, "cancelled\n", "")
    assert state_of(found) is State.CANCELLED


@pytest.mark.parametrize("by_id", [True, False])
def test_cancel_reports_why_a_job_was_not_cancelled(run, by_id):
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
def test_reschedule_changes_the_due_time(run, by_id):
    found = job()
    target = [found.pk] if by_id else [TOPIC, "order:1"]
    done = run("reschedule", *target, "--delay", "60", "--json")
    assert done.code == 0
    assert done.data["job"]["due_at"] == "2030-01-01T00:01:00.000Z"


@pytest.mark.parametrize("verb", [["reschedule", "--delay", "5"], ["run-now"]])
def test_running_or_ended_job_is_not_rescheduled(run, verb):
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


@pytest.mark.parametrize(("delay", "state"), [(60, "delayed"), (0, "ready")])
def test_only_dead_jobs_are_retried_and_the_state_is_named(run, delay, state):
    found = job(delay=delay)
    done = run("retry", found.pk)
    assert done.code == 1
    assert f"Only a dead job can be retried; {found.pk} is {state}." in done.err


def test_events_record_the_shell_user_or_the_given_actor(run, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    run("run-now", job("a").pk)
    run("run-now", job("b").pk, "--by", "release 7")
    assert list(JobEvent.objects.order_by("id").values_list("actor", flat=True)) == ["command:anna", "release 7"]


def test_user_without_a_name_is_recorded_by_uid(run, monkeypatch):
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
    transitions.cancel_delayed("default", found["cancelled"].pk)
    return found


def keys(done: Run) -> list[str]:
    return [each["key"] for each in done.data["jobs"]]


@pytest.mark.parametrize("state", list(State))
def test_list_filters_by_displayed_state(run, some, state):
    done = run("list", "--state", state.word, "--json")
    assert keys(done) == [state.word]
    assert done.data["jobs"][0]["state"] == state.word


def test_list_orders_all_jobs_newest_first_and_live_jobs_by_due_time(run, some):
    assert keys(run("list", "--json")) == ["cancelled", "delayed", "ready", "reserved", "dead", "finished"]
    assert keys(run("list", "--state", "live", "--json"))[-1] == "delayed"


def test_list_filters_by_topic_key_and_due_time(run, some):
    Topic.objects.get_or_create(name="mail.send")
    schedule("mail.send", key="delayed:mail", delay=1200)
    assert keys(run("list", "--topic", "mail.send", "--json")) == ["delayed:mail"]
    assert keys(run("list", "--key-prefix", "delayed", "--json")) == ["delayed", "delayed:mail"], "by key"
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


def test_empty_list_exits_with_0_and_a_message(run):
    for argv in (["list"], ["list", "--topic", TOPIC]):
        assert run(*argv)[:2] == (0, "No jobs.\n")


def test_list_refuses_an_unknown_topic_unless_it_has_jobs(run):
    job()
    Job.objects.update(topic="test.removed")
    assert keys(run("list", "--topic", "test.removed", "--json")) == ["order:1"]
    unknown = run("list", "--topic", "test.unknown", "--json")
    assert (unknown.code, unknown.data["error"]) == (2, "UnknownTopic")
    assert "Topic 'test.unknown' is unknown" in unknown.err


def test_stored_control_characters_are_escaped(run):
    found = job(delay=0)
    end(found, State.DEAD, "\x1b[2Jgone\x07")
    for argv in (["list"], ["show", found.pk]):
        out = run(*argv).out
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "gone" in out


def test_characters_that_change_the_direction_of_a_line_are_escaped(run):
    key = "order:\u202e1"
    for argv in (["schedule", TOPIC, key, "--delay", "5"], ["list"], ["show", TOPIC, key], ["run-now", TOPIC, key]):
        out = run(*argv).out
        assert "\u202e" not in out
        assert "order:\\u202e1" in out


def test_show_prints_all_fields_of_a_job(run, db_clock):
    found = job(body={"order": 1}, delay=0)
    db_clock.advance(ms=12)
    reserve(found)
    db_clock.advance(ms=340)
    event = transitions.Event(found.pk, Outcome.FAILED, 1, found.due_ms, db_clock.now_ms, found.due_ms + 12,
                             worker="w1", error="Traceback\nValueError: no")  # fmt: skip
    transitions.record("default", [event])
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


def test_show_prints_what_a_job_is_about_and_when_it_may_run(run):
    found = job()
    text = run("show", found.pk).out
    assert re.search(r"^subject +-$", text, re.MULTILINE)
    assert re.search(r"^expires +-$", text, re.MULTILINE)
    terms = {"priority": 7, "expires_ms": 60_000, "polls": 3, "subject_label": "shop.order", "subject_pk": "12"}
    Job.objects.filter(pk=found.pk).update(**terms)
    text = run("show", found.pk).out
    for fact in ("subject +shop.order 12", "priority +7", "expires +1 min after the due time", "polls +3"):
        assert re.search(f"^{fact}$", text, re.MULTILINE), text


def test_show_prints_who_changed_a_job_and_why(run):
    found = job(delay=60)
    cancel(TOPIC, "order:1", by="anna", reason="they paid by phone")
    assert run("show", found.pk, "--json").data["events"][-1]["reason"] == "they paid by phone"
    assert re.search(r"cancelled .* anna +they paid by phone$", run("show", found.pk).out, re.MULTILINE)


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
def test_show_of_an_unknown_job_exits_with_1(run, target):
    done = run("show", *target)
    assert done.code == 1
    assert "There is no job with" in done.err


def test_stats_count_each_topic(run, some):
    data = run("stats", "--json").data
    assert {word: data["topics"][TOPIC][word] for word in ("delayed", "ready", "reserved", "dead")} == {
        "delayed": 1, "ready": 1, "reserved": 1, "dead": 1,
    }  # fmt: skip
    assert data["mirror"] == "off"
    text = run("stats").out
    assert re.search(rf"^{re.escape(TOPIC)} +1 +1 +1 +1 ", text, re.MULTILINE)
    assert re.search(r"^mirror +off$", text, re.MULTILINE)


def test_stats_say_which_delayed_jobs_they_count(run, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "HORIZON_SECONDS": 1800}
    schedule("order.close", "near", delay=1790)
    schedule("order.close", "far", delay=1810)
    text = run("stats").out
    assert re.search(r"^order\.close +1 +0 +0 +0 ", text, re.MULTILINE)
    assert "\ndelayed  only jobs that are due within 30 min\n" in text


def test_stats_of_an_empty_database_are_0(run):
    assert run("stats").code == 0


# move, sweep, rebuild, audit


@pytest.fixture
def notified_topics(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics for which a message was sent to the workers."""
    rang: list[str] = []
    monkeypatch.setattr(dispatch, "send_run_topic", lambda using, topic, queue: rang.append(topic))
    dispatch.dispatcher.cache_clear()
    topics.clear_cache()
    yield rang
    dispatch.dispatcher.cache_clear()


@pytest.mark.parametrize("flags", [[], ["--until-idle"]])
def test_move_notifies_workers_of_due_jobs(run, notified_topics, due_index, flags):
    job(delay=0)
    done = run("move", *flags, "--json")
    assert done.code == 0
    assert notified_topics == [TOPIC]
    assert done.data["passes"] >= 1
    assert done.data["rest_ms"] > 0


def test_move_shows_whole_milliseconds(run, with_redis, monkeypatch):
    monkeypatch.setattr(dispatch.Mover, "move_due", lambda self: 734.1689453125)
    assert run("move").out == "1 pass; next pass in 735 ms\n"
    assert run("move", "--json").data == {"passes": 1, "rest_ms": 735}


def test_move_until_idle_repeats_while_jobs_are_due(run, notified_topics, with_redis, settings, monkeypatch):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "PROMOTE_LIMIT": 1, "BUCKETS": 1}
    for number in range(5):
        job(f"order:{number}", delay=0)
    assert run("move", "--json").data == {"passes": 1, "rest_ms": 0}
    assert run("move", "--until-idle", "--json").data["passes"] >= 4


def test_sweep_takes_back_jobs_whose_ttr_is_over(run, due_index, db_clock):
    found = job(delay=0)
    reserve(found)
    db_clock.advance(seconds=61)
    done = run("sweep", "--json")
    assert done.code == 0
    assert done.data["expired"] == 1
    assert state_of(found) is State.DEAD
    lines = run("sweep").out.splitlines()
    assert len({line.rindex(" ") for line in lines}) == 1, "the numbers are in one column"
    assert re.fullmatch(r"expired +0", lines[0])


def test_audit_without_a_mirror_says_so(run):
    done = run("audit")
    assert done.code == 0
    assert "No Redis is configured" in done.out
    assert run("rebuild", "--json").data == {"fed_entries": 0, "mirror": "off"}


def test_audit_check_exits_with_1_on_differences_and_repairs_nothing(run, with_redis, redis_server):
    job("order:1", delay=60)
    assert run("audit", "--check").code == 0
    flush_mirror(redis_server, with_redis["PREFIX"])
    for _ in range(2):
        done = run("audit", "--check", "--json")
        assert done.code == 1
        assert done.data["missing"] == 1


def test_audit_repairs_and_exits_with_0_if_no_difference_remains(run, with_redis, redis_server):
    job("order:1", delay=60)
    flush_mirror(redis_server, with_redis["PREFIX"])
    done = run("audit", "--json")
    assert done.code == 0
    assert done.data["missing"] == 1
    assert done.data["left"] == {"missing": 0, "ghosts": 0, "late": 0, "doubled": 0}
    assert run("audit", "--check").code == 0


def test_rebuild_restores_the_mirror(run, with_redis, redis_server):
    job("order:1", delay=60)
    job("order:2", delay=60)
    flush_mirror(redis_server, with_redis["PREFIX"])
    assert run("rebuild", "--json").data == {"fed_entries": 2, "mirror": "up"}


def test_unavailable_redis_exits_with_1_and_a_message(run, settings):
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/0", "REDIS_TIMEOUT_SECONDS": 0.2}
    for verb in ("rebuild", "audit"):
        done = run(verb, "--json")
        assert done.code == 1
        assert done.data["error"] == "MirrorDown"
    assert run("stats", "--json").data["mirror"] == "down"
    assert run("sweep").code == 0, "the database's part is done without Redis"


def flush_mirror(redis_server: Any, prefix: str) -> None:
    with redis_server.client() as client:
        for key in client.scan_iter(f"*{prefix}*"):
            client.delete(key)


# All of them


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(run, verb):
    done = run(verb, "--help")
    assert done.code == 0
    assert "--json" in done.out
    assert "--database" in done.out
    assert " ".join(VERBS[verb].help.split()[:3]) in " ".join(done.out.split())


@pytest.mark.parametrize("verb", ["stats", "list", "move", "sweep", "rebuild", "audit"])
def test_database_option_selects_the_alias(run, verb, notified_topics):
    assert run(verb, "--database", "default").code == 0


def test_all_times_in_json_are_rfc_3339_in_utc(run, settings, some):
    settings.TIME_ZONE = "Asia/Tokyo"
    for each in run("list", "--json").data["jobs"]:
        for name, value in each.items():
            if name.endswith(("_at", "_until")) and value is not None:
                assert RFC3339.fullmatch(value)
    assert Job.objects.get(key="delayed").due_at - from_ms(int(dialects.now_ms("default"))) == timedelta(minutes=10)


def test_a_database_that_does_not_answer_is_reported_in_one_line(run):
    def no_database(*_: Any) -> None:
        raise DatabaseError("connection failed: refused\n\tIs the server running on that host?")

    with connection.execute_wrapper(no_database):
        done = run("list")
    assert (done.code, done.out) == (1, "")
    assert "Database error: connection failed: refused Is the server running on that host? Check that" in done.err
    assert done.err.count("\n") == 1


def test_missing_table_exits_with_1_and_a_hint(run, monkeypatch):
    from django.db import ProgrammingError

    def no_table(*_: Any, **__: Any) -> None:
        raise ProgrammingError('relation "delaytasks_job" does not exist')

    monkeypatch.setattr("delaytasks.monitoring.metrics.snapshot", no_table)
    done = run("stats")
    assert done.code == 1
    assert "manage.py migrate" in done.err


@pytest.mark.parametrize("stored", ["Its TTR was over and nobody had finished it.", "delaytasks:timed_out"])
@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_engine_error_has_a_message_and_a_code(run, stored, language):
    late = job()
    Job.objects.filter(pk=late.pk).update(error=stored)
    transitions.record("default", [Event(late.pk, Outcome.EXPIRED, 1, 1, 2, error=stored)])
    with override(language):
        listed, shown = run("list").out, run("show", late.pk).out
        told, (first,) = run("show", late.pk, "--json").data, run("list", "--json").data["jobs"]
    sentence = "Timed out: the attempt exceeded its TTR."
    assert sentence in listed
    assert shown.count(sentence) == 2
    for each in (told, told["events"][0], first):
        assert (each["error"], each["error_code"]) == (sentence, "timed_out")


def test_error_of_a_handler_has_no_code(run):
    failed = job()
    Job.objects.filter(pk=failed.pk).update(error="ValueError: no")
    told = run("show", failed.pk, "--json").data
    assert (told["error"], told["error_code"]) == ("ValueError: no", None)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_closed_pipe_does_not_change_the_exit_code(options):
    """As in `manage.py delaytasks cancel ... | head -1`."""
    found = job()
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        call_command("delaytasks", "cancel", TOPIC, "order:1", *options, stdout=closed)
        assert state_of(found) is State.CANCELLED
        with pytest.raises(CommandError, match="was not cancelled") as refused:
            call_command("delaytasks", "cancel", TOPIC, "nobody", *options, stdout=closed)
    assert refused.value.returncode == 1


def test_an_output_that_cannot_be_written_is_reported_after_the_change(tmp_path):
    """As on a full disk."""
    found = job()
    with open(os.open(tmp_path / "output", os.O_CREAT | os.O_RDONLY), "w") as unwritable:
        with pytest.raises(CommandError, match="cancel has run, but its output could not be written: "):
            call_command("delaytasks", "cancel", TOPIC, "order:1", stdout=unwritable)
        assert state_of(found) is State.CANCELLED
        with pytest.raises(CommandError, match="is unknown"):
            call_command("delaytasks", "cancel", "nowhere", "order:1", "--json", stdout=unwritable)


def test_a_closed_stdout_is_reported_after_the_change(run, monkeypatch):
    """As in `manage.py delaytasks cancel ... >&-`: Python then has no sys.stdout."""
    found = job()
    monkeypatch.setattr("sys.stdout", None)
    done = run("cancel", TOPIC, "order:1")
    message = "cancel has run, but its output could not be written: [Errno 9] Bad file descriptor."
    assert (done.code, done.err) == (1, f"CommandError: {message}\n")
    assert state_of(found) is State.CANCELLED
    refused = run("cancel", "nowhere", "order:1", "--json")
    assert (refused.code, "is unknown" in refused.err) == (2, True)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_text_that_the_encoding_of_stdout_lacks_is_escaped(encoding):
    key = "Bestellung-ü-€"
    job(key)
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding=encoding) as stdout:
        call_command("delaytasks", "show", TOPIC, key, stdout=stdout)
        shown = written.getvalue().decode(encoding)
        assert key.encode(encoding, "backslashreplace").decode(encoding) in shown
        written.truncate(0)
        written.seek(0)
        call_command("delaytasks", "show", TOPIC, key, "--json", stdout=stdout)
        assert json.loads(written.getvalue().decode(encoding))["key"] == key


# prune


def old(key: str, state: State = State.FINISHED, days: int = 40) -> Job:
    made = job(key, delay=0)
    end(made, state)
    now = dialects.database_now("default")
    ended_at = now - timedelta(days=days)
    died_at = ended_at if state is State.DEAD else None
    Job.objects.filter(pk=made.pk).update(ended_at=ended_at, died_at=died_at, created_at=ended_at)
    return made


def remaining() -> list[str]:
    return sorted(Job.objects.values_list("key", flat=True))


def test_prune_deletes_ended_jobs_of_the_given_age(run):
    for key, state, days in (("a", State.FINISHED, 40), ("b", State.DEAD, 40), ("c", State.FINISHED, 20)):
        old(key, state, days)
    done = run("prune", "--older-than", "30d")
    assert (done.code, done.out) == (0, "deleted 1 job and 0 events without a job\n")
    assert remaining() == ["b", "c"]
    assert run("prune", "--dead-older-than", "960h", "--json").data == {"pruned": 1, "orphans": 0}
    assert remaining() == ["c"]


def test_prune_of_one_topic_leaves_the_others_alone(run):
    Topic.objects.create(name="mail.send")
    old("a")
    assert run("prune", "--older-than", "1d", "--topic", "mail.send").code == 0
    assert remaining() == ["a"]
    assert run("prune", "--older-than", "1d", "--topic", TOPIC).code == 0
    assert remaining() == []


def test_prune_refuses_an_unknown_topic_unless_it_has_jobs(run):
    old("a")
    Job.objects.update(topic="test.removed")
    refused = run("prune", "--older-than", "1d", "--topic", "test.remove")
    assert refused.code == 2
    assert "Topic 'test.remove' is unknown" in refused.err
    assert run("prune", "--older-than", "1d", "--topic", "test.removed", "--json").data["pruned"] == 1


def test_prune_asks_for_an_age_if_the_setting_has_none_for_the_topic(run, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RETENTION": {"mail.send": {"ended": timedelta(days=30)}}}
    old("a")
    refused = run("prune", "--topic", TOPIC)
    assert (refused.code, refused.out) == (2, "")
    assert "--older-than, such as --older-than 30d, or DELAYTASKS['RETENTION']" in refused.err


def test_prune_without_an_age_uses_the_setting_or_asks_for_one(run, settings):
    old("a")
    refused = run("prune")
    assert (refused.code, refused.out) == (2, "")
    assert "--older-than, such as --older-than 30d, or DELAYTASKS['RETENTION']" in refused.err
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RETENTION": {TOPIC: {"ended": timedelta(days=30)}}}
    assert run("prune", "--json").data["pruned"] == 1


def test_prune_at_an_age_of_zero_deletes_every_ended_job_whatever_the_setting_says(run, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RETENTION": {"*": {"ended": timedelta(days=30)}}}
    old("a", days=1)
    assert run("prune", "--older-than", "0s", "--json").data["pruned"] == 1
    assert AuditEntry.objects.get(action="jobs.pruned").after["older_than"] == {"*": {"ended": "0:00:00"}}


@pytest.mark.parametrize("age", ["30", "1w", "-1d", "d", "1.5d", ""])
def test_prune_refuses_an_age_that_it_does_not_understand(run, age):
    done = run("prune", f"--older-than={age}")
    assert done.code == 2
    assert f"{age!r} is not an age such as 30d, 12h, 45m or 90s" in done.err


def test_prune_leaves_the_jobs_to_the_archive_where_there_is_one(run, settings, tmp_path):
    old("a")
    (tmp_path / "default" / "archive").mkdir(parents=True)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": str(tmp_path)}
    done = run("prune", "--older-than", "30d")
    assert done.code == 1
    assert done.out == ""
    assert "Run `manage.py delaytasks pipeline archive` instead." in done.err
    assert remaining() == ["a"]


# the audit log


def entries() -> list[AuditEntry]:
    return list(AuditEntry.objects.order_by("pk"))


def test_a_change_of_a_job_is_in_the_audit_log(run, monkeypatch):
    monkeypatch.setenv("LOGNAME", "carol")
    run("schedule", TOPIC, "order:1", "--delay", "600")
    found = Job.objects.get()
    run("reschedule", found.pk, "--delay", "60")
    run("reschedule", TOPIC, "order:1", "--delay", "60")
    run("run-now", TOPIC, "order:1")
    end(found, State.DEAD)
    run("retry", found.pk)
    run("cancel", TOPIC, "order:1", "--by", "anna")
    run("cancel", TOPIC, "order:1")  # changes nothing
    run("cancel", found.pk)  # neither
    assert [entry.action for entry in entries()] == [
        "job.scheduled", "job.rescheduled", "job.rescheduled", "job.made_ready", "job.retried", "job.cancelled",
    ]  # fmt: skip
    assert {(entry.actor, entry.address, entry.target, entry.topic, entry.name) for entry in entries()} == {
        ("command:carol", socket.gethostname(), f"job {found.pk}", TOPIC, "order:1")
    }
    assert entries()[-1].request == "manage.py delaytasks cancel"


def test_the_reason_of_a_change_is_in_its_event_and_in_the_audit_log(run):
    found = job()
    why = ("--reason", "they paid by phone")
    run("reschedule", found.pk, "--delay", "60", *why)
    run("run-now", TOPIC, "order:1", *why)
    end(found, State.DEAD)
    run("retry", found.pk, *why)
    run("cancel", TOPIC, "order:1", *why)
    other = job("order:2")
    run("cancel", other.pk, *why)
    assert {event.reason for event in JobEvent.objects.filter(actor__startswith="command:")} == {why[1]}
    assert [entry.reason for entry in entries()] == [why[1]] * 5


def test_the_audit_log_shows_reasons_to_people_and_programs(run):
    audit_log.record("default", [audit_log.entry("job.cancelled", "anna", "job 1", reason="they called")])
    head, line = run("audit-log").out.splitlines()
    assert (head.index("reason"), head.split()[-3:]) == (line.index("they called"), ["reason", "before", "after"])
    assert run("audit-log", "--json").data["entries"][0]["reason"] == "they called"


def test_a_dead_job_cancelled_by_its_key_is_in_the_audit_log(run):
    found = job(delay=0)
    end(found, State.DEAD)
    assert run("cancel", TOPIC, "order:1").code == 0
    assert [(entry.action, entry.target) for entry in entries()] == [("job.cancelled", f"job {found.pk}")]


def test_a_cancelled_series_is_in_the_audit_log(run):
    schedule(TOPIC, "order:1", period=60, repeat=3)
    assert run("cancel", TOPIC, "order:1").code == 0
    assert [(entry.action, entry.topic, entry.name) for entry in entries()] == [("series.cancelled", TOPIC, "order:1")]


def test_a_series_that_ends_while_one_of_its_jobs_runs_is_in_the_audit_log(run):
    reserve(schedule(TOPIC, "order:1", period=60, repeat=3, delay=0))
    assert run("cancel", TOPIC, "order:1").err.endswith("was not cancelled: running.\n")
    assert [(entry.action, entry.name) for entry in entries()] == [("series.cancelled", "order:1")]
    run("cancel", TOPIC, "order:1")
    assert len(entries()) == 1


@pytest.mark.parametrize("by_id", [False, True], ids=["by key", "by id"])
def test_a_next_run_withdrawn_by_a_command_is_in_the_audit_log(run, monkeypatch, by_id):
    monkeypatch.setenv("LOGNAME", "carol")
    found = job(delay=0)
    reserve(found)
    schedule(TOPIC, "order:1", delay=5, on_conflict="again")
    assert run("cancel", *([found.pk] if by_id else [TOPIC, "order:1"])).code == 1
    assert [(entry.action, entry.actor, entry.target) for entry in entries()] == [
        ("job.next_run_withdrawn", "command:carol", f"job {found.pk}")
    ]


def test_a_job_replaced_by_a_command_has_one_entry(run):
    job(body={"amount": 10})
    run("schedule", TOPIC, "order:1", "--delay", "5", "--on-conflict", "replace", "--body", '{"amount": 9999}')
    run("schedule", TOPIC, "order:1", "--delay", "5", "--on-conflict", "keep")
    [entry] = entries()
    assert (entry.action, entry.after["body_sha256"]) == ("job.replaced", audit_log.body_sha256({"amount": 9999}))


def test_a_change_whose_entry_cannot_be_written_is_rolled_back(run):
    found = job()

    def read_only(execute: Any, sql: str, *args: Any) -> Any:
        if "delaytasks_auditentry" in sql:
            raise DatabaseError("cannot execute INSERT in a read-only transaction")
        return execute(sql, *args)

    with connection.execute_wrapper(read_only):
        assert run("cancel", found.pk).code == 1
    assert state_of(found) is State.DELAYED


def test_prune_is_one_entry_with_what_was_chosen_and_deleted(run, monkeypatch, db_clock):
    monkeypatch.setenv("LOGNAME", "carol")
    for n in range(3):
        end(job(f"order:{n}", delay=0), State.FINISHED)
    db_clock.advance(seconds=2)
    run("prune", "--older-than", "1s", "--topic", TOPIC)
    [entry] = entries()
    assert (entry.action, entry.actor, entry.topic) == ("jobs.pruned", "command:carol", TOPIC)
    assert entry.after == {"older_than": {"*": {"ended": "0:00:01"}}, "pruned": 3, "orphans": 0}


def test_prune_that_fails_leaves_an_entry_of_what_it_has_deleted(run, monkeypatch, db_clock):
    end(job(delay=0), State.FINISHED)
    delete = retention.sql.delete_jobs

    def delete_then_fail(*args: Any) -> int:
        delete(*args)
        monkeypatch.setattr(retention.sql, "delete_jobs", fail)
        return 1

    def fail(*args: Any) -> int:
        raise DatabaseError("the connection is lost")

    monkeypatch.setattr(retention, "PAGE", 1)
    end(job("order:2", delay=0), State.FINISHED)
    monkeypatch.setattr(retention.sql, "delete_jobs", delete_then_fail)
    db_clock.advance(seconds=2)
    assert run("prune", "--older-than", "1s").code == 1
    [entry] = entries()
    assert (entry.after["pruned"], entry.after["failed"]) == (1, "DatabaseError")


def fail_prune_after_a_batch(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let prune() commit a batch and then raise."""

    def prune(*_: Any) -> Iterator[retention.Batch]:
        yield retention.Batch("job", 1, None)
        raise error

    monkeypatch.setattr(retention, "prune", prune)


def test_a_refusal_after_a_committed_batch_leaves_an_entry(run, monkeypatch):
    fail_prune_after_a_batch(monkeypatch, MirrorDown("Redis does not answer."))
    assert run("prune", "--older-than", "1s").code == 1
    [entry] = entries()
    assert (entry.after["pruned"], entry.after["failed"]) == (1, "MirrorDown")


def test_an_entry_that_cannot_be_written_does_not_hide_the_error_of_the_command(run, monkeypatch, caplog):
    fail_prune_after_a_batch(monkeypatch, DatabaseError("the server has crashed"))

    def no_database(*_: Any) -> None:
        raise DatabaseError("connection refused")

    monkeypatch.setattr(audit_log, "record", no_database)
    assert "the server has crashed" in run("prune", "--older-than", "1s").err
    assert "jobs.pruned" in caplog.text
    assert "connection refused" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_prune_that_cannot_read_the_database_says_so_once(run, caplog):
    def no_database(*_: Any) -> None:
        raise DatabaseError("connection refused")

    with connection.execute_wrapper(no_database):
        done = run("prune", "--older-than", "1s")
    assert (done.code, done.out, caplog.text) == (1, "", "")
    assert "Database error: connection refused. Check that" in done.err


READ_ONLY = {"stats", "health", "list", "show", "audit-log"}
AS_WORKERS_DO = {"move", "sweep", "rebuild", "audit"}
OF_ONE_JOB = {"schedule", "cancel", "reschedule", "retry", "run-now"}
AUDITED = OF_ONE_JOB | {"schedules", "timeouts", "prune", "token", "pipeline"}
BY_MESSAGES = {"inbox"}  # each message is the actor of its changes


def test_each_subcommand_that_changes_something_is_known_to_write_the_audit_log(run):
    assert set(VERBS) == READ_ONLY | AS_WORKERS_DO | AUDITED | BY_MESSAGES
    for verb in (*READ_ONLY - {"show"}, *AS_WORKERS_DO):
        run(verb)
    assert entries() == []
