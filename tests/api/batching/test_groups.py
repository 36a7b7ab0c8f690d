"""Groups of adds, deletes, finishes and reservations: a true answer for each, on both databases."""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, connections, transaction
from django.utils import timezone

from delaytasks import databases, signals
from delaytasks.api.access.permissions import Right
from delaytasks.api.batching import adds, attempts
from delaytasks.api.batching.adds import Add, Delete
from delaytasks.api.batching.attempts import Finish, Reserve
from delaytasks.api.batching.batchers import Batcher, FallBack
from delaytasks.db import groups, transitions
from delaytasks.db.groups import Added, Done, Topics
from delaytasks.db.transitions import NewJob
from delaytasks.jobs import control, schedule
from delaytasks.jobs.audit_log import Source
from delaytasks.models import AuditEntry, Job, JobEvent, Topic
from delaytasks.states import State
from delaytasks.topics import topic_settings
from delaytasks.worker import completion, leases
from tests.support.locks import other_transaction

pytestmark = pytest.mark.on_both
USING = "default"
TOPICS = Topics(["mail.send", "sms.send"])


class FakeCaller:
    """A caller with every right on every topic."""

    def __init__(self, name: str = "php") -> None:
        self.name, self.signature = name, f"{name} (token x)"
        self.source = Source("10.0.0.7", "POST /api/queue/")
        self.producer = f"tok-{name}"

    def may(self, right: Any, topic: str) -> bool:
        return True

    sees = lambda self, topic: True  # noqa: E731
    visible = lambda self, topics: topics  # noqa: E731


PHP, GO = FakeCaller("php"), FakeCaller("go")


@pytest.fixture(autouse=True)
def _topics(settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"mail.send": {}, "sms.send": {}}}


def new(key: str, topic: str = "mail.send", *, mode: str = "reject", unique: bool = False, body: str = "{}") -> Add:
    return Add(NewJob(topic, key, None, 60_000, 60_000, body), mode, PHP, unique)


def add(*rows: Add) -> list[str]:
    """Add the rows in one group; return what was done, "" for a row that was left to the ordinary path."""
    return ["" if isinstance(a, FallBack) else a.done.value for a in adds.add_group(USING, rows)]


def running(key: str, worker: str = "php") -> tuple[int, int]:
    """Schedule and reserve a job. Return its id and attempt."""
    schedule.schedule("mail.send", key, delay=0)
    (job,) = leases.reserve("mail.send", 1, using=USING, worker=worker)
    return job.id, job.attempt


# -- adds ---------------------------------------------------------------------------------------


def test_running_jobs_are_added_again_and_waiting_ones_are_kept() -> None:
    job_id, attempt = running("running")
    schedule.schedule("mail.send", "waiting", delay=600)
    rows = [new(key, mode="again", body='{"n": 2}') for key in ("running", "waiting", "fresh")]
    [again, waiting, fresh] = adds.add_group(USING, rows)
    assert (again.done, waiting.done, fresh.done) == (Done.AGAIN, Done.KEPT, Done.CREATED)
    job = Job.objects.get(pk=job_id)
    assert (job.again_body, int(job.again_due_at.timestamp() * 1000)) == ({"n": 2}, again.due_ms)
    [event] = JobEvent.objects.filter(job_id=job_id)
    assert (event.outcome, event.attempt, event.actor) == ("scheduled", attempt, PHP.signature)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.address) == ("job.next_run_scheduled", PHP.signature, "10.0.0.7")
    (finished,) = attempts.finish_group(USING, [Finish(PHP, id=job_id, attempt=attempt)])
    assert isinstance(finished, FallBack), "the next run needs a second statement"
    leases.finish(job_id, attempt, using=USING)
    assert Job.objects.live().get(key="running").body == {"n": 2}


def test_a_job_that_ends_while_it_is_added_again_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, _ = running("running")
    store_next_runs = transitions.store_next_runs

    def finish_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        Job.objects.filter(pk=job_id).update(state=State.FINISHED, lease_until=None, ended_at=timezone.now())
        return store_next_runs(*arguments)

    monkeypatch.setattr(transitions, "store_next_runs", finish_first)
    assert add(new("running", mode="again")) == ["created"]


def test_group_answers_each_row() -> None:
    running("running")
    for key in ("live", "kept"):
        schedule.schedule("mail.send", key, delay=600)
    rows = [new("fresh"), new("live"), new("kept", mode="keep"), new("running"), new("other", topic="unknown.topic")]
    assert add(*rows) == ["created", "", "kept", "", ""]
    assert not Job.objects.filter(key="other").exists()


def test_group_writes_the_same_event_as_a_single_call() -> None:
    add(new("fresh"), new("fresh-2"))
    schedule.schedule("mail.send", "fresh-1", delay=60, ttr=60, by=PHP.signature)

    def event(key: str) -> tuple[Any, ...]:
        found = JobEvent.objects.get(job__key=key)
        return (found.outcome, found.attempt, found.actor, found.next_due_ms - found.done_ms, found.due_ms < 0)

    assert event("fresh") == event("fresh-1")


def test_each_row_keeps_its_subject_and_its_actor() -> None:
    rows = [
        groups.NewRow(NewJob("mail.send", "with", None, 60_000, 60_000, "{}", "shop.order", "7"), "reject", "php"),
        groups.NewRow(NewJob("mail.send", "without", None, 60_000, 60_000, "{}"), "reject", "go"),
    ]
    with transaction.atomic(USING):
        groups.add_each(USING, rows, TOPICS, 20, lambda *_: [])
    stored = Job.objects.order_by("key").values_list("key", "subject_label", "subject_pk", "events__actor")
    assert list(stored) == [("with", "shop.order", "7", "php"), ("without", None, None, "go")]


def test_key_that_is_live_in_another_topic_is_left_to_the_ordinary_path() -> None:
    schedule.schedule("sms.send", "taken", delay=600)
    assert add(new("taken", unique=True), new("free", unique=True)) == ["", "created"]
    assert add(new("taken", unique=False)) == ["created"]


def test_key_that_is_live_in_a_topic_made_a_moment_ago_is_left_to_the_ordinary_path() -> None:
    assert add(new("first", unique=True)) == ["created"]  # this process has now seen all topics
    Topic.objects.create(name="push.send")
    schedule.schedule("push.send", "taken", delay=600)
    assert add(new("taken", unique=True), new("free", unique=True)) == ["", "created"]


def test_key_in_a_topic_that_the_caller_does_not_see_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule.schedule("sms.send", "taken", delay=600)
    monkeypatch.setattr(FakeCaller, "visible", lambda self, topics: topics - {"sms.send"})
    assert add(new("taken", unique=True)) == ["created"]


def test_topic_that_was_deleted_is_unknown_at_once() -> None:
    topic = Topic.objects.create(name="push.send")
    assert add(new("a", "push.send"), new("b", "push.send", unique=True)) == ["created", "created"]
    topic.delete()
    assert add(new("c", "push.send"), new("d", "push.send", unique=True), new("e")) == ["", "", "created"]


@pytest.mark.only_on("postgresql")
def test_failed_look_up_of_live_keys_leaves_them_to_the_ordinary_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new jobs are committed by then, so their answers stand."""
    schedule.schedule("mail.send", "live", delay=600)

    def fail(*_: Any) -> Any:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(transitions, "find_live", fail)
    assert add(new("live", mode="keep"), new("fresh")) == ["", "created"]


def test_two_groups_cannot_make_one_key_live_in_two_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adds, "LOCK_WAIT_MS", 10_000)  # one of the two waits for the other
    results: list[str] = []

    def work(topic: str) -> None:
        try:
            results.extend(add(new("one", topic=topic, unique=True)))
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(topic,)) for topic in ("mail.send", "sms.send")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Job.objects.filter(key="one").count() == 1
    assert sorted(results) == ["", "created"]


def test_live_job_that_ends_during_the_statement_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule.schedule("mail.send", "k", delay=600)
    insert, calls = groups._insert, list[int]()

    def insert_then_end(using: str, *arguments: Any) -> Any:
        inserted = insert(using, *arguments)
        if not calls:
            Job.objects.filter(key="k").update(state=State.CANCELLED, ended_at=Job.objects.get(key="k").due_at)
        calls.append(1)
        return inserted

    monkeypatch.setattr(groups, "_insert", insert_then_end)
    assert add(new("k")) == ["created"]
    assert len(calls) == 2


def test_answers_of_a_committed_round_stand_if_the_next_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    add_each, calls = groups.add_each, list[int]()

    def add_one_then_fail(using: str, rows: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise DataError("bad row")
        added, topics = add_each(using, rows[:1], *arguments)
        return [*added, Added(Done.REPEAT)], topics

    monkeypatch.setattr(groups, "add_each", add_one_then_fail)
    assert add(new("one"), new("two")) == ["created", ""]
    assert Job.objects.get().key == "one"


def test_racing_groups_and_cancels_give_true_answers() -> None:
    """Each answer "created" is a row, and each row an answer."""
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def work(number: int) -> None:
        mine: Counter[str] = Counter()
        batcher = Batcher("race", lambda works: adds.add_group(USING, works))
        for n in range(15):
            rows = [new(f"k{(number * 7 + n * 3 + i) % 12}", mode=("reject", "keep", "again")[i % 3]) for i in range(6)]
            items: list[Any] = [type("Item", (), {"work": row})() for row in rows]
            for answer in batcher._answers(items):
                mine["" if isinstance(answer, Exception) else answer.done.value] += 1
            control.cancel("mail.send", f"k{(number + n) % 12}")
        connections.close_all()
        with lock:
            counts.update(mine)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts["created"] == Job.objects.count()
    assert sum(counts.values()) == 3 * 15 * 6


@pytest.mark.only_on("postgresql")
def test_key_in_an_open_transaction_holds_no_group() -> None:
    """A row that waits for somebody's transaction goes to the ordinary path; the others are written at once."""
    batcher = Batcher("held", lambda works: adds.add_group(USING, works))
    items: list[Any] = [type("Item", (), {"work": new(key)})() for key in ("one", "held", "two")]
    with other_transaction(lambda: schedule.schedule("mail.send", "held", delay=600)):
        begun = time.monotonic()
        answers = batcher._answers(items)
        took = time.monotonic() - begun
    assert [isinstance(answer, FallBack) for answer in answers] == [False, True, False]
    assert took < 8


@pytest.mark.only_on("postgresql")
def test_body_that_the_database_refuses_loses_no_other_row() -> None:
    batcher = Batcher("bad", lambda works: adds.add_group(USING, works))
    rows = [new("one"), new("bad", body=json.dumps("\0")), new("two")]
    items: list[Any] = [type("Item", (), {"work": row})() for row in rows]
    assert [isinstance(answer, FallBack) for answer in batcher._answers(items)] == [False, True, False]
    assert set(Job.objects.values_list("key", flat=True)) == {"one", "two"}


def test_new_jobs_of_a_group_take_the_same_number_of_statements_as_one(django_assert_max_num_queries: Any) -> None:
    add(new("warm"))
    databases.clock(USING).measure()  # refreshed every 15 s; its query must not count here
    with django_assert_max_num_queries(6) as one:
        add(new("a"))
    with django_assert_max_num_queries(6) as many:
        add(*(new(f"b{n}") for n in range(50)))
    assert len(many) == len(one)


# -- deletes, finishes, reservations ------------------------------------------------------------


def test_deletes_cancel_what_waits_and_leave_the_rest() -> None:
    running("running")
    schedule.schedule("mail.send", "waits", delay=600)
    for topic in ("mail.send", "sms.send"):
        schedule.schedule(topic, "twice", delay=600)
    deletes = [Delete(key, None, PHP, (Right.PRODUCE,), "why") for key in ("running", "waits", "twice", "unknown")]
    assert [answer is True for answer in adds.delete_group(USING, deletes)] == [False, True, False, False]
    event = JobEvent.objects.get(outcome="cancelled")
    assert (event.job.key, event.actor, event.reason) == ("waits", PHP.signature, "why")
    entry = AuditEntry.objects.get(action="job.cancelled")
    assert (entry.actor, entry.name, entry.reason, entry.address) == (PHP.signature, "waits", "why", "10.0.0.7")


def test_delete_of_a_job_that_is_claimed_meanwhile_cancels_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule.schedule("mail.send", "k", delay=0)
    find_live = transitions.find_live

    def find_then_claim(using: str, pairs: Any) -> Any:
        found = find_live(using, pairs)
        transitions.claim(using, "mail.send", [row.id for row in found.values()], "w1")
        return found

    monkeypatch.setattr(transitions, "find_live", find_then_claim)
    (answer,) = adds.delete_group(USING, [Delete("k", None, PHP, (Right.PRODUCE,), "")])
    assert isinstance(answer, FallBack)
    assert Job.objects.get().state == State.RESERVED


def test_finishes_end_the_callers_own_attempts_only() -> None:
    mine, theirs, twice = running("mine"), running("theirs", "go"), running("twice", "php/one")
    finishes = [
        Finish(PHP, id=mine[0], attempt=mine[1]), Finish(PHP, id=theirs[0], attempt=theirs[1]),
        Finish(PHP, key="twice"), Finish(PHP, id=twice[0], attempt=twice[1]), Finish(PHP, key="twice", attempt=9),
    ]  # fmt: skip
    done = [answer is True for answer in attempts.finish_group(USING, finishes)]
    assert done[:2] == [True, False]
    assert sum(done[2:4]) == 1, "a job is finished once"
    assert not done[4]
    assert dict(Job.objects.values_list("key", "state")) == {
        "mine": State.FINISHED, "theirs": State.RESERVED, "twice": State.FINISHED,
    }  # fmt: skip
    assert JobEvent.objects.get(job__key="mine", outcome="finished").actor == PHP.signature


@pytest.mark.parametrize("in_group", [True, False])
def test_receivers_get_the_whole_job_whichever_way_it_is_finished(in_group: bool) -> None:
    schedule.schedule("mail.send", "k", delay=0, expires=3600)
    Job.objects.update(subject_label="auth.user", subject_pk="5", polls=3)
    (job,) = leases.reserve("mail.send", 1, using=USING, worker="php")
    received = []

    def receive(sender: Any, job: Any, **_: Any) -> None:
        received.append((job.subject_label, job.subject_pk, job.expires_ms, job.polls))

    signals.job_finished.connect(receive)
    try:
        if in_group:
            assert attempts.finish_group(USING, [Finish(PHP, id=job.id, attempt=job.attempt)]) == [True]
        else:
            leases.finish(job.id, job.attempt, using=USING, by=PHP.signature)
    finally:
        signals.job_finished.disconnect(receive)
    assert received == [("auth.user", "5", 3_600_000, 3)]


def test_a_finish_that_must_also_sync_a_declared_timeout_is_left_to_the_ordinary_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(completion.after_end, "mail.send", lambda using, held: None)
    job_id, attempt = running("a")
    (finished,) = attempts.finish_group(USING, [Finish(PHP, id=job_id, attempt=attempt)])
    assert isinstance(finished, FallBack)
    assert Job.objects.get(pk=job_id).state == State.RESERVED


def test_attempt_lost_between_lookup_and_update_is_not_finished(monkeypatch: pytest.MonkeyPatch, db_clock: Any) -> None:
    running("k")
    find = groups.find_attempts

    def find_then_wait(*args: Any) -> Any:
        found = find(*args)
        db_clock.advance(seconds=61)
        return found

    monkeypatch.setattr(groups, "find_attempts", find_then_wait)
    (answer,) = attempts.finish_group(USING, [Finish(PHP, key="k")])
    assert isinstance(answer, FallBack)
    assert Job.objects.get().state == State.RESERVED


@pytest.mark.only_on("postgresql")
def test_groups_of_finishes_and_of_reservations_take_two_round_trips(tmp_path: Path) -> None:
    held = [running(f"k{n}") for n in range(3)]
    schedule.schedule_many({"topic": "mail.send", "key": f"r{n}", "delay": 0} for n in range(3))
    by_key = [Finish(PHP, key=f"k{n}", topic="mail.send") for n in (1, 2)]
    finishes = [Finish(PHP, id=held[0][0], attempt=held[0][1]), *by_key]
    with round_trips(tmp_path / "finishes") as found:
        assert attempts.finish_group(USING, finishes) == [True] * 3
    assert found == [2]
    topic_settings(USING, "mail.send")  # read once in a second
    with round_trips(tmp_path / "reservations") as found:
        assert all(attempts.reserve_group(USING, [Reserve("mail.send", 1, "php")] * 3))
    assert found == [2], "the ready ids, which the mirror knows otherwise, and the claim"


@contextmanager
def round_trips(path: Path) -> Iterator[list[int]]:
    """Append the number of this connection's round trips in the block to the list."""
    counts: list[int] = []
    databases.clock(USING).measure()  # refreshed every 15 s; its query must not count here
    pgconn: Any = connection.connection.pgconn
    with path.open("wb") as file:
        pgconn.trace(file.fileno())
        try:
            yield counts
        finally:
            pgconn.untrace()
    counts.append(len(re.findall(r"^\S+ \S+\tF\t\d+\t(?:Query|Sync)\b", path.read_text(), re.MULTILINE)))


def test_claims_of_a_topic_stand_if_a_later_one_fails(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BATCH_MAX": 2}
    schedule.schedule_many({"topic": "mail.send", "key": f"k{n}", "delay": 0} for n in range(5))
    reserve, claims = leases.reserve, []

    def fail_second(*args: Any, **kwargs: Any) -> Any:
        claims.append(args)
        if len(claims) == 2:
            raise OperationalError("the connection is lost")
        return reserve(*args, **kwargs)

    monkeypatch.setattr(leases, "reserve", fail_second)
    dealt = attempts.reserve_group(USING, [Reserve("mail.send", 1, "php")] * 4)
    assert [len(jobs) for jobs in dealt] == [1, 1, 0, 0]
    assert Job.objects.filter(state=State.RESERVED).count() == 2


@pytest.mark.only_on("postgresql")
def test_jobs_that_others_have_locked_hold_up_their_consumers_for_a_moment_only() -> None:
    schedule.schedule_many({"topic": "mail.send", "key": f"k{n}", "delay": 0} for n in range(300))
    other = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SELECT 1 FROM delaytasks_job FOR UPDATE")
    unlock = threading.Timer(20, other.connection.rollback)
    unlock.start()
    try:
        assert attempts.reserve_group(USING, [Reserve("mail.send", 1, "php")]) == [[]]
        assert not unlock.finished.is_set(), "it did not wait for the lock"
    finally:
        unlock.cancel()
        other.close()


def test_claims_in_several_names_are_all_or_none(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule.schedule_many({"topic": "mail.send", "key": f"k{n}", "delay": 0} for n in range(2))

    def fail(*_: Any) -> None:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(groups, "assign_workers", fail)
    answers = attempts.reserve_group(USING, [Reserve("mail.send", 1, "php"), Reserve("mail.send", 1, "go")])
    assert all(isinstance(answer, OperationalError) for answer in answers)
    assert not Job.objects.filter(state=State.RESERVED).exists()


def test_consumers_are_dealt_jobs_in_their_order_under_their_own_names(due_index: Any) -> None:
    for n in range(5):
        schedule.schedule("mail.send", f"k{n}", delay=0)
    if due_index is not None and hasattr(due_index, "promote_due"):
        due_index.promote_due(10**14, ["mail.send"])
    asked = [Reserve("mail.send", 1, f"php/{n}") for n in range(3)] + [Reserve("mail.send", 3, "go")]
    dealt = attempts.reserve_group(USING, asked)
    assert [len(jobs) for jobs in dealt] == [1, 1, 1, 2]
    assert {job.id for jobs in dealt for job in jobs} == set(Job.objects.values_list("id", flat=True))
    for ask, jobs in zip(asked, dealt, strict=True):
        assert {job.worker for job in jobs} == {ask.worker}
        assert set(Job.objects.filter(id__in=[job.id for job in jobs]).values_list("worker", flat=True)) == {ask.worker}


def test_more_consumers_than_one_claim_takes_all_get_jobs(settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BATCH_MAX": 2}
    schedule.schedule_many({"topic": "mail.send", "key": f"k{n}", "delay": 0} for n in range(5))
    dealt = attempts.reserve_group(USING, [Reserve("mail.send", 1, "php")] * 5)
    assert [len(jobs) for jobs in dealt] == [1] * 5
