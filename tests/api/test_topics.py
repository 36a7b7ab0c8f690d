"""Topics over REST: job counts, pause and resume."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from delaytasks import handlers
from delaytasks.jobs import schedule
from delaytasks.models import Topic
from tests.api.rest_client import Rest
from tests.db.test_isolation_levels import alter
from tests.support.locks import committed_meanwhile

EMPTY = {
    "paused": False, "handled": False, "delayed_within_horizon": 0, "horizon_seconds": 3600, "ready": 0,
    "reserved": 0, "dead": 0, "at_least": False, "oldest_ready_ms": None, "target": None,
}  # fmt: skip


def paused(name: str = "mail.send") -> bool:
    return Topic.objects.filter(name=name, paused=True).exists()


def test_topic_is_shown_with_its_job_counts(rest: Rest, db_clock: Any) -> None:
    for number, delay in enumerate([0, 0, 0, 0, 10, 3600, 3601]):
        rest.make(f"k{number}", delay_seconds=delay)
    dead, _reserved = rest.take(count=2)
    rest.post(f"jobs/{dead['id']}/bury/", {"attempt": 1})
    db_clock.advance(ms=41)
    assert rest.get("topics/mail.send/") == EMPTY | {
        "name": "mail.send", "delayed_within_horizon": 2, "ready": 2, "reserved": 1, "dead": 1, "oldest_ready_ms": 41,
    }  # fmt: skip


def test_list_contains_only_visible_topics_sorted_by_name(rest: Rest) -> None:
    schedule.schedule("sms.send", key="a", delay=0)
    Topic.objects.create(name="mail.extra", paused=True)
    Topic.objects.create(name="mailbox")
    rest.make()
    assert rest.get("topics/")["results"] == [
        EMPTY | {"name": "mail.extra", "paused": True},
        EMPTY | {"name": "mail.print"},
        EMPTY | {"name": "mail.send", "ready": 1, "oldest_ready_ms": 0},
    ]


def test_topic_with_a_handler_is_marked_as_handled(rest: Rest) -> None:
    handlers.handler("mail.send")(lambda job: None)
    try:
        assert rest.get("topics/mail.send/")["handled"] is True
    finally:
        handlers.unregister("mail.send")


def test_a_target_of_staff_is_shown_and_counts_as_handled(rest: Rest) -> None:
    target = {"kind": "celery", "task": "a.b", "format": "json", "source": "/delaytasks", "timeout": 15}
    Topic.objects.create(name="mail.send", target=target)
    Topic.objects.create(name="mail.gone", target={**target, "kind": "kafka"})  # no process can use it
    shown = {each["name"]: (each["handled"], each["target"]) for each in rest.get("topics/")["results"]}
    assert shown["mail.send"] == (True, target)
    assert shown["mail.gone"] == (False, {**target, "kind": "kafka"})
    assert rest.get("topics/mail.send/")["target"] == target


@pytest.mark.parametrize("action", ["", "pause/", "resume/", "reserve/"])
def test_without_a_grant_a_topic_is_refused_whether_or_not_it_exists(rest: Rest, action: str) -> None:
    call = rest.post if action else rest.get
    details = [
        call(f"topics/{topic}/{action}", status=403)["detail"].replace(topic, "?") for topic in ("sms.send", "sms.no")
    ]
    assert details[0] == details[1]
    assert not paused("sms.send")


@pytest.mark.parametrize("action", ["", "pause/", "resume/", "reserve/"])
@pytest.mark.parametrize("topic", ["mail.none", "mail. ", "mail.%00", "mail.%2e", "mail.ü"])
def test_unknown_granted_topic_is_404(rest: Rest, action: str, topic: str) -> None:
    (rest.post if action else rest.get)(f"topics/{topic}/{action}", status=404)
    assert not Topic.objects.filter(name__startswith="mail").exists()


def test_invalid_topic_name_is_404_also_with_a_grant_for_all(make_token: Callable[..., str], api: Any) -> None:
    rest = Rest(api(make_token(topics={"*": "manage"})))
    for topic in ("%00", "%0A", "a b", "-", "x" * 101):
        rest.get(f"topics/{topic}/", 404)
        rest.post(f"topics/{topic}/pause/", status=404)


def test_pause_and_resume_are_logged_with_the_caller(rest: Rest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "delaytasks")
    rest.make()
    assert rest.post("topics/mail.send/pause/") == {"name": "mail.send", "paused": True}
    assert (paused(), rest.take(), rest.get("topics/mail.send/")["paused"]) == (True, [], True)
    assert rest.post("topics/mail.send/resume/", {}) == {"name": "mail.send", "paused": False}
    assert (paused(), len(rest.take())) == (False, 1)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Topic")]
    assert said == ["Topic mail.send was paused by php.", "Topic mail.send was resumed by php."]


def test_pausing_and_resuming_are_idempotent(rest: Rest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "delaytasks")
    for action, now in [("resume", False), ("pause", True), ("pause", True), ("resume", False), ("resume", False)]:
        assert rest.post(f"topics/mail.send/{action}/") == {"name": "mail.send", "paused": now}
    assert len([record for record in caplog.records if record.getMessage().startswith("Topic")]) == 2


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("action", ["pause", "resume"])
def test_a_topic_is_paused_under_repeatable_read_while_another_request_stores_its_row(rest: Rest, action: str) -> None:
    rest.make()
    alter("SET default_transaction_isolation = 'repeatable read'")
    try:
        with committed_meanwhile(lambda: Topic.objects.create(name="mail.send", concurrency=3)):
            rest.post(f"topics/mail.send/{action}/")
    finally:
        alter("RESET default_transaction_isolation")
    assert Topic.objects.filter(name="mail.send").values_list("paused", "concurrency").get() == (action == "pause", 3)


def test_pausing_keeps_other_settings_of_the_topic(rest: Rest) -> None:
    Topic.objects.create(name="mail.send", concurrency=3)
    rest.post("topics/mail.send/pause/")
    assert Topic.objects.filter(name="mail.send").values_list("paused", "concurrency").get() == (True, 3)


def test_pause_does_not_affect_reserved_jobs(rest: Rest) -> None:
    rest.make()
    held = rest.take()[0]
    rest.post("topics/mail.send/pause/")
    rest.post(f"jobs/{held['id']}/touch/", {"attempt": 1})
    rest.post(f"jobs/{held['id']}/finish/", {"attempt": 1})


@pytest.mark.parametrize("action", ["pause", "resume"])
@pytest.mark.parametrize("data", [{"for_seconds": 5}, [], True])
def test_pause_refuses_unknown_fields(rest: Rest, action: str, data: Any) -> None:
    rest.post(f"topics/mail.send/{action}/", data, 400)
    assert not paused()


@pytest.mark.parametrize("rights", ["produce", "consume", "produce consume"])
def test_pausing_requires_the_right_to_manage(rest_of: Callable[..., Rest], rights: str) -> None:
    for action in ("pause", "resume"):
        assert "manage" in rest_of(rights).post(f"topics/mail.send/{action}/", status=403)["detail"]
    assert not paused()


def test_staff_with_change_topic_permission_can_pause(rest: Rest, staff_api: Callable[..., Any]) -> None:
    Rest(staff_api("delaytasks.view_job", "delaytasks.operate_job")).post("topics/mail.send/pause/", status=403)
    assert not paused()
    Rest(staff_api("delaytasks.change_topic")).post("topics/mail.send/pause/")
    assert paused()


@pytest.mark.on_both
def test_the_number_of_queries_does_not_grow_with_the_topics(rest: Rest) -> None:
    counts = []
    for start in (0, 50):
        Topic.objects.bulk_create(Topic(name=f"mail.t{start + n}") for n in range(50))
        counts.append(rest.count_queries(lambda: rest.get("topics/")))
    assert counts[0] == counts[1] <= 16  # counted within bounds, in rounds; on PostgreSQL each with a way of planning
