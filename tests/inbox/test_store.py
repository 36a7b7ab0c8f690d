"""A batch and its jobs in one transaction: repeated, changed and refused messages, and the order of a key."""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, connections

from delaytasks import tasks
from delaytasks.clock import from_ms
from delaytasks.inbox import consumer
from delaytasks.inbox import store as module
from delaytasks.inbox.messages import decode
from delaytasks.inbox.store import store
from delaytasks.jobs import storage
from delaytasks.maintenance import inbox as maintenance
from delaytasks.maintenance import retention
from delaytasks.maintenance.sweep import sweep
from delaytasks.models import InboxMessage, Job, JobEvent
from delaytasks.states import State
from tests.support.locks import other_transaction

from .conftest import document, received

pytestmark = pytest.mark.on_both


@pytest.fixture
def put(make_inbox, db_clock, transactional_db):
    """Store documents in one batch. Returns the codes of the refusals, "" for the others, and what was repeated."""
    inbox = make_inbox(kafka="delays")

    def put(*documents):
        commands = [decode(received(each), inbox, now_ms=db_clock.now_ms) for each in documents]
        answers, repeated = store("default", inbox.name, commands)
        return [answer.code if answer else "" for answer in answers], repeated

    return put


def live(key="order:1"):
    return list(Job.objects.filter(key=key).live())


def test_a_message_schedules_a_job_and_leaves_a_row(put, db_clock):
    assert put(document(body={"n": 1}, ttr_seconds=7)) == ([""], 0)
    (job,) = live()
    assert (job.topic, job.due_at, job.body) == ("shop.close", from_ms(db_clock.now_ms + 60_000), {"n": 1})
    assert job.ttr_ms == 7000
    assert InboxMessage.objects.get().message_id == "m1"


def test_a_repeated_message_does_nothing_even_after_its_job_was_cancelled(put):
    put(document())
    put(document("m2", "cancel"))
    assert put(document()) == ([""], 1)
    assert (live(), InboxMessage.objects.count()) == ([], 2)


def test_a_message_twice_in_a_batch_is_stored_once(put):
    assert put(document(), document(), document("m1", body=1)) == (["", "", "repeated-id"], 1)
    assert len(live()) == 1


def test_an_id_with_another_body_is_refused_and_changes_nothing(put):
    put(document(body=1))
    assert put(document(body=2)) == (["repeated-id"], 0)
    assert live()[0].body == 1


def test_ids_of_two_sources_or_inboxes_are_different(put, make_inbox, db_clock):
    put(document())
    commands = [decode(received(document(key="b")), make_inbox(kafka="delays"), now_ms=db_clock.now_ms)]
    assert store("default", "another", commands) == ([None], 0)
    assert InboxMessage.objects.count() == 2


def test_the_messages_of_a_key_take_effect_in_their_order(put):
    put(
        document("1"), document("2", "cancel"), document("3", body=3), document("4", key="order:2"),
        document("5", "cancel", key="order:2"), document("6", body=6),
    )  # fmt: skip
    assert ([job.body for job in live()], live("order:2")) == ([6], [])
    assert Job.objects.filter(key="order:1", state=State.CANCELLED).count() == 1


def test_a_cancel_names_the_inbox_and_one_without_a_job_is_no_error(put, name):
    put(document())
    assert put(document("m2", "cancel"), document("m3", "cancel", key="nothing")) == (["", ""], 0)
    assert JobEvent.objects.get(outcome="cancelled").actor == f"inbox {name}"


def test_the_modes_for_a_live_job(put):
    put(document(body=1))
    assert put(document("2", body=2, on_conflict="keep"))[0] == [""]
    assert live()[0].body == 1
    assert put(document("3", body=3, on_conflict="reject"), document("4", key="order:2"))[0] == ["conflict", ""]
    assert (live()[0].body, len(live("order:2"))) == (1, 1)
    assert put(document("5", body=5))[0] == [""]
    assert live()[0].body == 5


def test_a_refused_message_leaves_no_row_so_that_it_can_be_sent_again(put):
    put(document())
    put(document("2", on_conflict="reject"))
    put(document("3", "cancel"))
    assert put(document("2", on_conflict="reject")) == ([""], 0)
    assert len(live()) == 1


def test_a_refused_message_may_be_sent_again_in_the_same_batch(put):
    refused = document("2", on_conflict="reject", body=2)
    put(document())
    assert put(refused, document("3", "cancel"), refused, refused) == (["conflict", "", "", ""], 1)
    assert [job.body for job in live()] == [2]
    corrected = document("4", body=4)
    assert put(document("4", on_conflict="reject"), corrected, document("5", body=5)) == (["conflict", "", ""], 0)
    assert [job.body for job in live()] == [5]
    assert put(corrected) == ([""], 1)


def test_a_running_job_is_not_replaced(put, db_clock):
    put(document())
    now = from_ms(db_clock.now_ms)
    Job.objects.update(state=State.RESERVED, reserved_at=now, lease_until=now + timedelta(minutes=1), attempt=1)
    assert put(document("2"), document("3", "cancel")) == (["conflict", ""], 0)


def test_a_topic_that_nobody_knows_any_more_is_refused(put, topics, make_inbox, db_clock):
    inbox = make_inbox(kafka="delays", topics=["shop.gone"])
    commands = [
        decode(received(document(id, action, topic="shop.gone")), inbox, now_ms=db_clock.now_ms)
        for id, action in [("1", "schedule"), ("2", "cancel")]
    ]
    answers, _ = store("default", inbox.name, commands)
    assert [answer.code for answer in answers] == ["unknown-topic"] * 2
    assert InboxMessage.objects.count() == 0


def test_nothing_is_written_if_the_rows_cannot_be(put, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no rows")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(InboxMessage.objects._queryset_class, "bulk_create", fail)
        put(document())
    assert Job.objects.count() == 0


@pytest.mark.only_on("postgresql")
def test_two_consumers_that_store_the_same_message_schedule_one_job(put, monkeypatch):
    """The other one stores the message after this one has looked for it."""
    stored_digests, others = module._stored_digests, []

    def store_elsewhere():
        try:
            others.append(put(document(body=1)))
        finally:
            connections["default"].close()

    def read_then_let_the_other_store(*arguments):
        found = stored_digests(*arguments)
        if not others and threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=store_elsewhere)
            thread.start()
            thread.join(20)
        return found

    monkeypatch.setattr(module, "_stored_digests", read_then_let_the_other_store)
    assert put(document(body=1)) == ([""], 1)
    assert others == [([""], 0)]
    assert (len(live()), Job.objects.count()) == (1, 1)
    assert JobEvent.objects.get().outcome == "scheduled"  # not replaced


def test_the_number_of_statements_does_not_grow_with_the_batch(put, django_assert_max_num_queries):
    with django_assert_max_num_queries(12):
        put(*(document(f"m{n}", key=f"order:{n}") for n in range(100)))
    assert Job.objects.count() == 100


def test_the_sweep_forgets_old_messages(put, db_clock, settings, monkeypatch):
    monkeypatch.setattr(maintenance, "BATCH", 2)
    put(*(document(f"old{n}", key=f"order:{n}") for n in range(5)))
    db_clock.advance(seconds=timedelta(days=13).total_seconds())
    put(document("new"))
    assert sweep()["inbox"] == 0
    db_clock.advance(seconds=timedelta(days=1).total_seconds() + 1)
    assert sweep()["inbox"] == 5
    assert [row.message_id for row in InboxMessage.objects.all()] == ["new"]
    assert put(document("new"))[1] == 1


def test_a_thread_goes_on_where_the_sweep_has_stopped(put, db_clock, monkeypatch):
    monkeypatch.setattr(maintenance, "BATCH", 2)
    monkeypatch.setattr(maintenance, "STEP_SECONDS", 0)
    monkeypatch.setattr(tasks, "in_worker", lambda: True)
    put(*(document(f"old{n}", key=f"order:{n}") for n in range(7)))
    db_clock.advance(seconds=timedelta(days=14).total_seconds() + 1)
    put(document("new"))
    assert tasks.sweep()["inbox"] == 2
    retention._threads["default"].join(timeout=30)
    assert [row.message_id for row in InboxMessage.objects.all()] == ["new"]


def test_old_messages_are_found_by_an_index(transactional_db):
    rows = InboxMessage.objects.filter(received_at__lt=from_ms(0)).order_by("received_at").values("id")[:10]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
            try:
                assert "delaytasks_inboxmessage_age" in rows.explain()
            finally:
                cursor.execute("RESET enable_seqscan")
    else:
        assert "delaytasks_inboxmessage_age" in rows.explain()


def test_a_lost_connection_is_opened_again_before_messages_are_taken(transactional_db):
    connection.ensure_connection()
    connection.connection.close()
    consumer._check_database("default")
    assert InboxMessage.objects.count() == 0


def test_no_message_is_taken_while_the_database_takes_no_rows(transactional_db):
    """It may answer: a standby, a full disk."""

    def refuse_writes(execute, sql, *arguments):
        if sql.startswith("INSERT"):
            raise OperationalError("cannot execute INSERT in a read-only transaction")
        return execute(sql, *arguments)

    with connection.execute_wrapper(refuse_writes), pytest.raises(OperationalError, match="read-only"):
        consumer._check_database("default")
    assert not connection.in_atomic_block


@pytest.fixture
def locked_row(put):
    """The job of order:1, locked by another transaction."""
    put(document("locked"))
    with other_transaction(lambda: Job.objects.select_for_update().get(key="order:1")):
        yield


@pytest.mark.only_on("postgresql")
def test_a_locked_row_delays_the_messages_of_its_key_alone(put, locked_row, make_inbox, db_clock, monkeypatch):
    monkeypatch.setattr(module, "LOCK_MS", 50)
    inbox = make_inbox(kafka="delays")
    given = (document("1", body=1), document("2", key="order:2"), document("3", "cancel"), document("4", key="order:4"))
    commands = [decode(received(each), inbox, now_ms=db_clock.now_ms) for each in given]
    with pytest.raises(OperationalError, match="lock timeout"):
        consumer._store_commands("default", inbox.name, commands)
    assert set(InboxMessage.objects.values_list("message_id", flat=True)) == {"locked", "2", "4"}
    assert not live()[0].body


@pytest.mark.only_on("postgresql")
def test_many_locked_rows_end_the_batch(put, locked_row, make_inbox, db_clock, monkeypatch):
    monkeypatch.setattr(module, "LOCK_MS", 50)
    monkeypatch.setattr(consumer, "MAX_LOCKED", 1)
    inbox = make_inbox(kafka="delays")
    given = (document("1"), document("2", key="order:2"))
    commands = [decode(received(each), inbox, now_ms=db_clock.now_ms) for each in given]
    with pytest.raises(OperationalError, match="lock timeout"):
        consumer._store_commands("default", inbox.name, commands)
    assert live("order:2") == []


@pytest.mark.only_on("postgresql")
def test_an_error_raised_by_a_trigger_of_the_site_refuses_that_message_alone(put, make_inbox, db_clock):
    inbox = make_inbox(kafka="delays")
    with connection.cursor() as cursor:
        body = "BEGIN RAISE EXCEPTION 'closed'; END"
        cursor.execute(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON delaytasks_job FOR EACH ROW WHEN (NEW.key = 'order:2')"
            " EXECUTE FUNCTION refuse()"
        )
    try:
        commands = [
            decode(received(document(f"{n}", key=f"order:{n}")), inbox, now_ms=db_clock.now_ms) for n in range(1, 4)
        ]
        answers, _ = consumer._store_commands("default", inbox.name, commands)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
    assert [answer.code if answer else "" for answer in answers] == ["", "error", ""]
    assert "closed" in answers[1].reason
    assert not live("order:2")
    assert live("order:3")


def test_a_key_that_others_keep_changing_blames_no_message(put, monkeypatch):
    monkeypatch.setattr(storage, "RACES", 0)
    with pytest.raises(OperationalError, match="changed 0 times"):
        put(document())


def test_a_replacement_names_the_inbox(put, name):
    put(document("0", on_conflict="keep"))
    assert JobEvent.objects.count() == 0
    put(document("1", body=1))
    put(document("2", body=2, on_conflict="again"))
    assert set(JobEvent.objects.values_list("actor", flat=True)) == {f"inbox {name}"}
