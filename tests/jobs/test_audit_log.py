"""The audit log: what replacing a job records, and that nobody can change it afterwards."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.core import checks
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

import delaytasks
from delaytasks.db import audit_triggers
from delaytasks.jobs import audit_log
from delaytasks.jobs.audit_log import Source
from delaytasks.models import AuditEntry, Job, JobEvent, Topic
from delaytasks.states import Outcome
from delaytasks.worker.completion import Completion, complete

pytestmark = [pytest.mark.on_both, pytest.mark.usefixtures("transactional_db")]
TOPIC = "order.close"


def schedule(amount: int, **options: Any) -> Job:
    return delaytasks.schedule(
        TOPIC, key="order:1", delay=60, body={"amount": amount, "to": "Ä"}, on_conflict="replace", **options
    )


def replaced() -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(action="job.replaced").order_by("pk"))


# Replaced jobs


def test_a_replaced_body_leaves_its_hash_and_that_of_the_new_one() -> None:
    job = schedule(10, by="anna")
    with audit_log.source(Source("192.0.2.7", "POST /orders/")):
        schedule(9999, by="bob")
    (entry,) = replaced()
    assert (entry.actor, entry.address, entry.request) == ("bob", "192.0.2.7", "POST /orders/")
    assert (entry.target, entry.topic, entry.name) == (f"job {job.pk}", TOPIC, "order:1")
    assert entry.before["body_sha256"] == audit_log.body_sha256({"to": "Ä", "amount": 10})
    assert entry.after["body_sha256"] == audit_log.body_sha256({"to": "Ä", "amount": 9999})
    assert "body" not in entry.before | entry.after
    assert abs(entry.at - timezone.now()) < timedelta(minutes=1)


def test_the_hash_is_that_of_canonical_json() -> None:
    """As `printf '{"a":"Ä","b":[1,2]}' | sha256sum` gives it."""
    digest = "8dc5fbcb1e70bed91aa14364bdcec5de7880270989afc46b6c3607875281b74d"
    assert audit_log.body_sha256({"b": [1, 2], "a": "Ä"}) == digest


def test_a_topic_can_keep_the_bodies() -> None:
    Topic.objects.update_or_create(name=TOPIC, defaults={"keep_bodies": True})
    schedule(10, by="anna")
    schedule(9999, by="bob")
    (entry,) = replaced()
    assert (entry.before["body"]["amount"], entry.after["body"]["amount"]) == (10, 9999)


def test_the_entry_is_part_of_the_transaction() -> None:
    schedule(10, by="anna")
    with transaction.atomic():
        schedule(9999, by="bob")
        transaction.set_rollback(True)
    assert replaced() == []


def test_many_replaced_jobs_have_an_entry_each() -> None:
    def jobs(amount: int) -> list[dict[str, Any]]:
        return [{"topic": TOPIC, "key": f"order:{n}", "delay": 60, "body": {"amount": amount}} for n in range(20)]

    delaytasks.schedule_many(jobs(10), by="anna")
    delaytasks.schedule_many(jobs(11), by="bob", on_conflict="replace")
    assert len(replaced()) == 20
    assert {entry.before["body_sha256"] for entry in replaced()} == {audit_log.body_sha256({"amount": 10})}


def test_code_that_names_nobody_writes_no_entry() -> None:
    schedule(10)
    schedule(9999)
    assert replaced() == []
    assert JobEvent.objects.filter(outcome="rescheduled").count() == 1


# Next runs of running jobs


@pytest.fixture
def held(stage: Any) -> Any:
    """A running job, which bob has scheduled with the amount 10."""
    stage.handler("t", max_attempts=2, ttr=10)(lambda job: None)
    delaytasks.schedule("t", "order:1", delay=0, body={"amount": 10})
    [held] = stage.take("t")
    return held


def again(amount: int, **options: Any) -> Job:
    return delaytasks.schedule("t", "order:1", delay=60, body={"amount": amount}, on_conflict="again", **options)


def digests(entry: AuditEntry) -> list[Any]:
    return [values and values["body_sha256"] for values in (entry.before, entry.after)]


def digest_of(amount: int) -> str:
    return audit_log.body_sha256({"amount": amount})


def test_a_replaced_next_run_leaves_the_hashes_of_both_bodies(held: Any) -> None:
    again(11, by="anna")
    with audit_log.source(Source("192.0.2.7", "POST /orders/")):
        again(9999, by="bob")
    [_, entry] = AuditEntry.objects.order_by("pk")
    assert (entry.action, entry.actor, entry.address) == ("job.next_run_replaced", "bob", "192.0.2.7")
    assert (entry.target, entry.topic, entry.name) == (f"job {held.id}", "t", "order:1")
    assert digests(entry) == [digest_of(11), digest_of(9999)]
    assert "body" not in entry.before | entry.after


def test_a_next_run_leaves_the_hash_of_the_body_that_it_replaces_if_the_attempt_fails(held: Any) -> None:
    again(9999, by="bob")
    complete("default", [Completion(held, Outcome.FAILED, 60_000, "Boom")])
    assert Job.objects.get().body == {"amount": 9999}
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, digests(entry)) == (
        "job.next_run_scheduled", "bob", [digest_of(10), digest_of(9999)]
    )  # fmt: skip


def test_many_next_runs_have_an_entry_each(stage: Any) -> None:
    stage.handler("t")(lambda job: None)
    delaytasks.schedule_many({"topic": "t", "key": f"order:{n}", "delay": 0, "body": {"amount": 10}} for n in range(3))
    stage.take("t")
    for amount in (11, 12):
        items = [{"topic": "t", "key": f"order:{n}", "delay": 60, "body": {"amount": amount}} for n in range(3)]
        delaytasks.schedule_many(items, on_conflict="again", by="bob")
    assert [digests(entry) for entry in AuditEntry.objects.filter(action="job.next_run_replaced")] == [
        [digest_of(11), digest_of(12)]
    ] * 3


def test_a_topic_can_keep_the_bodies_of_next_runs(held: Any) -> None:
    Topic.objects.update_or_create(name="t", defaults={"keep_bodies": True})
    again(11, by="anna")
    again(9999, by="bob")
    entry = AuditEntry.objects.get(action="job.next_run_replaced")
    assert (entry.before["body"], entry.after["body"]) == ({"amount": 11}, {"amount": 9999})


def test_a_withdrawn_next_run_leaves_its_hash(held: Any) -> None:
    again(9999)
    delaytasks.cancel("t", "order:1", by="bob")
    assert digests(AuditEntry.objects.get(action="job.next_run_withdrawn")) == [digest_of(9999), None]


def test_the_entry_of_a_next_run_is_part_of_the_transaction(held: Any) -> None:
    with transaction.atomic():
        again(9999, by="bob")
        transaction.set_rollback(True)
    assert not AuditEntry.objects.exists()


def test_a_kept_job_and_a_next_run_of_code_that_names_nobody_have_no_entry(held: Any) -> None:
    again(11)
    again(12)
    delaytasks.schedule("t", "order:2", delay=60, by="bob")
    delaytasks.schedule("t", "order:2", delay=60, body={"amount": 9999}, on_conflict="again", by="bob")
    assert not AuditEntry.objects.exists()


# Append-only


@pytest.fixture
def triggers() -> Iterator[None]:
    """The triggers, which Django's test databases lack."""
    audit_triggers.install(connection)
    audit_triggers.install(connection)  # it may be repeated
    yield
    audit_triggers.remove(connection)


def write(count: int = 3) -> None:
    audit_log.record("default", [audit_log.entry("topic.paused", "anna", f"topic {n}") for n in range(count)])


def execute(sql: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)


REPLACE = {
    "sqlite": "INSERT OR REPLACE INTO delaytasks_auditentry SELECT * FROM delaytasks_auditentry WHERE actor = 'anna'",
    "postgresql": "INSERT INTO delaytasks_auditentry SELECT * FROM delaytasks_auditentry WHERE actor = 'anna' "
    "ON CONFLICT (id) DO UPDATE SET actor = 'mallory'",
}
TAMPERING: dict[str, Callable[[], object]] = {
    "update": lambda: AuditEntry.objects.update(actor="mallory"),
    "update one": lambda: execute("UPDATE delaytasks_auditentry SET actor = 'mallory' WHERE target = 'topic 1'"),
    "delete": lambda: AuditEntry.objects.all().delete(),
    "delete in sql": lambda: execute("DELETE FROM delaytasks_auditentry"),
    "replace": lambda: execute(REPLACE[connection.vendor]),
    "truncate": lambda: execute(
        "TRUNCATE delaytasks_auditentry" if connection.vendor == "postgresql" else "DELETE FROM delaytasks_auditentry"
    ),
    "announce the future": lambda: audit_log.record("default", [
        audit_log.entry("audit.pruned", "mallory", "audit log", deletes_before=timezone.now() + timedelta(days=1))
    ]),
    "announce under another name": lambda: audit_log.record("default", [
        audit_log.entry("topic.paused", "mallory", "topic", deletes_before=timezone.now() - timedelta(days=1))
    ]),
}  # fmt: skip


@pytest.mark.parametrize("how", TAMPERING)
def test_no_statement_changes_or_deletes_an_entry(how: str, triggers: None) -> None:
    write()
    with pytest.raises(DatabaseError):
        TAMPERING[how]()
    assert list(AuditEntry.objects.order_by("pk").values_list("actor", "target")) == [
        ("anna", f"topic {n}") for n in range(3)
    ]


@pytest.mark.only_on("postgresql")
def test_a_temporary_table_of_the_same_name_announces_nothing(triggers: None) -> None:
    write()
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE delaytasks_auditentry ON COMMIT DROP "
            "AS SELECT 'audit.pruned' AS action, timestamptz 'infinity' AS deletes_before"
        )
        cursor.execute("DELETE FROM public.delaytasks_auditentry")
    assert AuditEntry.objects.count() == 3


@pytest.mark.only_on("postgresql")
def test_a_migration_replaces_the_function_of_triggers_from_before(triggers: None) -> None:
    def options() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT proconfig FROM pg_proc WHERE proname = 'delaytasks_audit_append_only'")
            return cursor.fetchall()

    execute("ALTER FUNCTION delaytasks_audit_append_only() RESET ALL")
    assert options() == [(None,)]
    module = import_module("delaytasks.migrations.0040_audit_function")
    with connection.schema_editor() as editor:
        module.replace_function(apps, editor)
    assert options() == [(["search_path=pg_catalog, pg_temp"],)]


def test_the_model_has_no_save_and_no_delete() -> None:
    write(1)
    entry = AuditEntry.objects.get()
    for change in (entry.save, entry.delete):
        with pytest.raises(TypeError, match="append-only"):
            change()


def test_pruning_deletes_old_entries_and_says_so(triggers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "PRUNE_BATCH", 2)
    old = timezone.now() - timedelta(days=40)
    audit_log.record("default", [audit_log.entry("topic.paused", "anna", "topic", at=old) for _ in range(5)])
    write(2)
    before = timezone.now() - timedelta(days=30)
    assert audit_log.prune("default", before, "ops") == 5
    assert audit_log.prune("default", before, "ops") == 0
    entries = AuditEntry.objects.order_by("pk")
    assert [entry.action for entry in entries] == ["topic.paused"] * 2 + ["audit.pruned"]
    assert [entry.actor for entry in entries][2:] == ["ops"]
    with pytest.raises(DatabaseError):
        entries.filter(action="audit.pruned").delete()


def test_a_missing_trigger_is_W014(triggers: None) -> None:
    def messages() -> list[str]:
        found = checks.run_checks(tags=["delaytasks"], include_deployment_checks=True, databases=["default"])
        return [message.msg for message in found if message.id == "delaytasks.W014"]

    assert messages() == []
    audit_triggers.remove(connection)
    assert len(messages()) == 1
    assert "delaytasks_audit" in messages()[0]


def test_triggers_are_left_out_in_test_databases_only() -> None:
    assert audit_triggers.is_test_database(connection)

    class Production:
        vendor = "postgresql"
        settings_dict = {"NAME": "shop", "TEST": {"NAME": None}}  # noqa: RUF012

    assert not audit_triggers.is_test_database(Production)
