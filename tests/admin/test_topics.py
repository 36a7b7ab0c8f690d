"""Topics in the admin: statistics, handler, pausing, run slots and visibility."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import formatting, handlers
from delaytasks.admin.forms import TopicForm
from delaytasks.backoff import Backoff
from delaytasks.clock import to_ms
from delaytasks.jobs import audit_log
from delaytasks.models import AuditEntry, Topic
from delaytasks.states import Outcome, State
from tests.db.test_isolation_levels import alter
from tests.support.locks import committed_meanwhile

from .conftest import NOW, TOPIC, close_order, make_event, make_job

LIST = "/admin/delaytasks/topic/"
ADD = f"{LIST}add/"
PAGE = f"{LIST}{TOPIC}/change/"


def topic() -> Topic:
    return Topic.objects.get(name=TOPIC)


def page_of(client) -> dict[str, Any]:
    """Return the form data that a browser would send for the unchanged page."""
    form = client.get(PAGE).context["adminform"].form
    sent: dict[str, Any] = {}
    for box in form:
        sent |= {box.html_name: box.value(), box.html_initial_name: box.initial}
    empty = (None, False, "", [])
    return {name: "on" if value is True else value for name, value in sent.items() if value not in empty}


def log_messages() -> list[str]:
    """Return the entries of the topic in Django's log, oldest first."""
    return [entry.get_change_message() for entry in LogEntry.objects.filter(object_id=TOPIC).order_by("pk")]


def test_the_list_names_the_handler(admin_client):
    page = admin_client.get(LIST).content.decode()
    assert "tests.admin.conftest.close_order" in page
    assert "dt-running" in page


def test_a_row_shows_the_handlers_docstring_and_retry_policy(admin_client):
    """In the row itself, so that keyboards and touch screens can reach it, not in a tooltip."""
    page = admin_client.get(LIST).content.decode()
    ((summary, unfolded),) = re.findall(
        r'<summary>(close_order.*?)</summary><div class="dt-doc">(.*?)</div>', page, re.S
    )
    assert "Close an order that nobody paid." in summary
    assert "Its stock goes back on sale." in unfolded
    assert "The job is dead after 3 failed attempts." in unfolded
    assert "title=" not in summary


def test_the_page_shows_what_the_handler_does(admin_client):
    page = admin_client.get(PAGE).content.decode()
    assert "Close an order that nobody paid." in page
    assert "Its stock goes back on sale." in page


def test_a_topic_is_paused_and_resumed(admin_client):
    admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]})
    assert topic().paused
    assert "dt-paused" in admin_client.get(LIST).content.decode()
    admin_client.post(LIST, {"action": "resume", "_selected_action": [TOPIC]})
    assert not topic().paused
    assert LogEntry.objects.filter(object_id=TOPIC).count() == 2


def test_pausing_a_paused_topic_reports_no_change(admin_client):
    Topic.objects.filter(name=TOPIC).update(paused=True)
    page = admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]}, follow=True)
    assert "0 topics paused" in page.content.decode()
    assert not LogEntry.objects.exists()


def test_pausing_does_not_overwrite_columns_of_the_engine(admin_client):
    Topic.objects.filter(name=TOPIC).update(slots={"token": 1})
    admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]})
    assert topic().slots == {"token": 1}


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_topic_is_paused_under_repeatable_read_while_its_row_changes(admin_client):
    admin_client.get(LIST)
    alter("SET default_transaction_isolation = 'repeatable read'")
    try:
        with committed_meanwhile(lambda: Topic.objects.filter(name=TOPIC).update(slots={"token": 1})):
            admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]})
    finally:
        alter("RESET default_transaction_isolation")
    assert (topic().paused, topic().slots) == (True, {"token": 1})
    entry = AuditEntry.objects.get(action="topic.paused")
    assert (entry.before["paused"], entry.after["paused"]) == (False, True)


def test_run_slots_can_be_set_on_the_page(admin_client):
    admin_client.post(PAGE, {"concurrency": "3"})
    assert topic().concurrency == 3
    admin_client.post(PAGE, page_of(admin_client) | {"concurrency": ""})
    assert topic().concurrency is None


def test_zero_run_slots_are_refused_with_advice(admin_client):
    page = admin_client.post(PAGE, {"concurrency": "0"})
    assert "Pause the topic instead" in page.content.decode()


def test_a_topic_cannot_be_renamed(admin_client):
    admin_client.post(PAGE, {"name": "test.renamed", "concurrency": "2"})
    assert topic().concurrency == 2
    assert not Topic.objects.filter(name="test.renamed").exists()


def test_a_new_topic_needs_a_valid_name(admin_client):
    page = admin_client.post(ADD, {"name": "no spaces"})
    assert "is not a valid topic name" in page.content.decode()
    admin_client.post(ADD, {"name": "mail.send"})
    assert Topic.objects.filter(name="mail.send").exists()


def test_a_topic_with_a_handler_or_jobs_cannot_be_deleted(admin_client):
    Topic.objects.create(name="mail.send")
    Topic.objects.create(name="mail.unused")
    make_job("mail:1", topic="mail.send")
    admin_client.post(
        LIST,
        {"action": "delete_selected", "_selected_action": [TOPIC, "mail.send"], "post": "yes"},
    )
    assert Topic.objects.filter(name__in=[TOPIC, "mail.send"]).count() == 2
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": ["mail.unused"], "post": "yes"})
    assert not Topic.objects.filter(name="mail.unused").exists()


@pytest.mark.on_both
def test_the_list_needs_no_query_per_topic(admin_client):
    def query_count() -> int:
        cache.clear()
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(LIST).status_code == 200
        return len(captured)

    job = make_job("a", State.READY)
    make_event(job, Outcome.FINISHED, reserved_ms=to_ms(job.due_at), attempt=1, done_ms=to_ms(NOW))
    before = query_count()
    for number in range(40):
        Topic.objects.create(name=f"mail.n{number}")
        make_job(f"b{number}", State.READY, topic=f"mail.n{number}")
    assert query_count() == before
    assert before <= 30


def test_users_who_may_only_view_cannot_pause(staff):
    client = staff("delaytasks.view_topic")
    assert client.get(LIST).status_code == 200
    client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]})
    assert not topic().paused


@pytest.mark.parametrize("name", ["<script>alert(1)</script>"])
def test_a_hostile_name_is_escaped(admin_client, name):
    Topic.objects.create(name=name)
    assert "<script>alert(1)" not in admin_client.get(LIST).content.decode()


# -- statistics ------------------------------------------------------------------------------


def cells_of(client, name: str) -> dict[str, str]:
    """Return the text of each cell of a topic's row."""
    rows = re.findall(r"<tr>(.*?)</tr>", client.get(LIST).content.decode(), re.S)
    (row,) = [row for row in rows if f"{name}/change/" in row]
    cells = re.findall(r'<t[dh] class="field-(\w+)[^>]*>(.*?)</t[dh]>', row, re.S)
    return {column: re.sub(r"<[^>]+>", "", cell).strip() for column, cell in cells}


def test_each_row_has_its_live_numbers(admin_client):
    Topic.objects.create(name="mail.send")
    make_job("later", due=timedelta(days=3))
    make_job("waits", State.READY, due=timedelta(minutes=4))
    make_job("held", State.RESERVED, due=timedelta(minutes=9))
    make_job("dead", State.DEAD)
    for late_ms in (10, 20, 300):
        job = make_job(f"finished {late_ms}", State.FINISHED)
        due_ms = to_ms(NOW) - 90_000
        make_event(job, Outcome.FINISHED, attempt=1, due_ms=due_ms, reserved_ms=due_ms + late_ms, done_ms=due_ms + 999)
    cells = cells_of(admin_client, TOPIC)
    assert (cells["delayed"], cells["ready"], cells["reserved"], cells["dead"]) == ("1", "1", "1", "1")
    assert (cells["oldest_ready"], cells["lateness"]) == ("4 min", "20 ms / 300 ms")
    assert cells["throughput"] == "0.1"  # three in an hour
    assert cells_of(admin_client, "mail.send")["ready"] == "0"


def test_long_waiting_times_are_marked(admin_client):
    make_job("waits", State.READY, due=timedelta(seconds=59))
    assert "dt-overdue" not in admin_client.get(LIST).content.decode()
    cache.clear()
    make_job("waits longer", State.READY, due=timedelta(seconds=60))
    assert "dt-overdue" in admin_client.get(LIST).content.decode()


def test_each_number_links_to_its_jobs(admin_client):
    make_job("waits", State.READY)
    make_job("later")
    page = admin_client.get(LIST).content.decode()
    for state, key in (("ready", "waits"), ("delayed", "later")):
        address = f"/admin/delaytasks/job/?state={state}&amp;topic={TOPIC}"
        assert f'href="{address}"' in page
        listed = admin_client.get(address.replace("&amp;", "&")).context["cl"].result_list
        assert [job.key for job in listed] == [key]


def test_the_page_shows_the_outcomes_of_the_last_hour(admin_client):
    job = make_job("a", State.FINISHED)
    for outcome in (Outcome.FINISHED, Outcome.FINISHED, Outcome.FAILED):
        make_event(job, outcome, attempt=1, due_ms=to_ms(NOW), reserved_ms=to_ms(NOW) + 7, done_ms=to_ms(NOW) + 9)
    page = admin_client.get(PAGE).content.decode()
    assert "finished 2, failed 1" in page
    assert "7 ms / 7 ms" in page


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.SCHEDULED])
def test_each_outcome_is_among_those_of_the_last_hour(admin_client, outcome):
    make_event(make_job("a"), outcome, attempt=1, due_ms=to_ms(NOW), reserved_ms=None, done_ms=to_ms(NOW) + 9)
    assert f">{formatting.OUTCOMES[outcome]} 1<" in admin_client.get(PAGE).content.decode()


def test_users_who_may_not_view_jobs_see_no_statistics(staff):
    make_job("a", State.READY)
    client = staff("delaytasks.view_topic")
    assert "ready" not in cells_of(client, TOPIC)
    page = client.get(PAGE).content.decode()
    assert "field-ready" not in page
    assert "field-last_hour" not in page
    assert "Close an order that nobody paid." in page


def test_a_hidden_topic_is_neither_listed_nor_found(staff):
    mine = Group.objects.create(name="Support")
    Topic.objects.create(name="secret.topic", visible_to=[mine.pk + 1])
    Topic.objects.create(name="our.topic", visible_to=[mine.pk])
    client = staff("delaytasks.view_topic", "delaytasks.change_topic", "delaytasks.view_job")
    client.user.groups.add(mine)
    page = client.get(LIST).content.decode()
    assert "secret.topic" not in page
    assert "our.topic" in page
    assert client.get(f"{LIST}secret.topic/change/").status_code == 302  # as for an unknown topic
    client.post(LIST, {"action": "pause", "_selected_action": ["secret.topic"]})
    assert not Topic.objects.get(name="secret.topic").paused


# -- handler -------------------------------------------------------------------------------


RETRIED = "A failed attempt is retried after"


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ({"ttr": 60, "max_attempts": 3}, f"An attempt may take at most 1 min. {RETRIED} 5 s, 10 s. "),
        (
            {"ttr": 60, "max_attempts": 3},
            " Each delay varies by up to 20 %. The job is dead after 3",
        ),
        ({"max_attempts": 9}, f"{RETRIED} 5 s, 10 s, 20 s, 40 s, 1 min and so on, at most 6 h 0 min. "),
        (
            {"max_attempts": 3, "backoff": Backoff(1, 2, 60, 0)},
            f"{RETRIED} 1 s, 2 s. The job is dead after 3 failed attempts.",
        ),
        ({"max_attempts": 1}, "An attempt may take at most 1 min. If it fails or takes longer, the job is dead."),
    ],
)
def test_the_retry_policy_is_described(admin_client, terms, text):
    handlers.unregister(TOPIC)
    handlers.handler(TOPIC, **terms)(close_order)
    assert text in admin_client.get(PAGE).content.decode()


def test_the_policy_of_a_topic_with_consumers(admin_client, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"mail.send": {"ttr": 30, "max_attempts": 4}}}
    Topic.objects.create(name="mail.send")
    page = admin_client.get(f"{LIST}mail.send/change/").content.decode()
    assert "in the settings" in page
    assert (
        "An attempt may take at most 30 s. The consumer decides when a failed attempt is retried. "
        "The job is dead after 4 failed attempts."
    ) in page


def test_run_slots_set_by_staff_are_shown_with_those_of_the_handler(admin_client):
    assert cells_of(admin_client, TOPIC)["run_slots"] == "8"
    Topic.objects.filter(name=TOPIC).update(concurrency=2)
    assert cells_of(admin_client, TOPIC)["run_slots"] == "2 instead of 8"


# -- settings ----------------------------------------------------------------------


def test_the_groups_that_see_the_topic_are_checkboxes(admin_client):
    support, finance = Group.objects.create(name="Support"), Group.objects.create(name="Finance")
    admin_client.post(PAGE, {"visible_to": [str(support.pk), str(finance.pk)]})
    assert sorted(topic().visible_to) == sorted([support.pk, finance.pk])
    page = admin_client.get(PAGE).content.decode()
    assert page.count("checked") == 2
    admin_client.post(PAGE, page_of(admin_client) | {"visible_to": []})
    assert topic().visible_to == []


def test_an_unknown_group_cannot_be_selected(admin_client):
    page = admin_client.post(PAGE, {"visible_to": ["999"]})
    assert "999 is not one of the available choices" in page.content.decode()
    assert topic().visible_to == []


def test_saving_does_not_open_a_topic_with_a_deleted_group(admin_client):
    Topic.objects.filter(name=TOPIC).update(visible_to=[999])
    page = admin_client.get(PAGE)
    assert "deleted group (999)" in page.content.decode()
    sent = page.context["adminform"].form.initial["visible_to"]
    admin_client.post(PAGE, {"concurrency": "3", "visible_to": [str(pk) for pk in sent]})
    assert (topic().concurrency, topic().visible_to) == (3, [999])


def test_users_who_may_only_view_see_the_names_of_the_groups(staff):
    support = Group.objects.create(name="Support")
    Topic.objects.filter(name=TOPIC).update(visible_to=[support.pk])
    client = staff("delaytasks.view_topic")
    client.user.groups.add(support)
    page = client.get(PAGE).content.decode()
    assert "Support" in page
    assert "everyone who may view jobs" not in page


def test_a_reason_can_be_required(admin_client):
    admin_client.post(PAGE, {"ask_reason": "on"})
    assert topic().ask_reason


def test_pausing_on_the_page_is_logged(admin_client):
    admin_client.post(PAGE, page_of(admin_client) | {"paused": "on", "reason": "The bank is down."})
    assert topic().paused
    admin_client.post(PAGE, page_of(admin_client) | {"paused": "", "concurrency": "3"})
    assert not topic().paused
    assert log_messages() == ["Paused: The bank is down.", "Resumed.", "Changed Concurrency."]


def test_saving_an_unchanged_page_changes_and_logs_nothing(admin_client):
    Topic.objects.filter(name=TOPIC).update(paused=True, concurrency=3)
    admin_client.post(PAGE, page_of(admin_client))
    assert (topic().paused, topic().concurrency) == (True, 3)
    assert log_messages() == []


@pytest.mark.parametrize("paused", [True, False])
def test_saving_an_old_page_does_not_revert_changes_of_others(admin_client, paused):
    """Another user pauses or resumes the topic in the meantime, and the engine updates the same row."""
    support = Group.objects.create(name="Support")
    Topic.objects.filter(name=TOPIC).update(paused=not paused)
    page = page_of(admin_client)
    Topic.objects.filter(name=TOPIC).update(
        paused=paused, concurrency=5, visible_to=[support.pk], slots={"token": 1}
    )  # fmt: skip
    admin_client.post(PAGE, page | {"ask_reason": "on"})
    found = topic()
    assert (found.paused, found.concurrency, found.visible_to, found.slots) == (paused, 5, [support.pk], {"token": 1})
    assert found.ask_reason
    assert log_messages() == ["Changed Ask for a reason."]


def test_changes_of_the_engine_during_saving_are_kept(admin_client, monkeypatch):
    def clean(form):
        Topic.objects.filter(name=TOPIC).update(slots={"token": 1})
        return form.cleaned_data

    monkeypatch.setattr(TopicForm, "clean", clean)
    admin_client.post(PAGE, page_of(admin_client) | {"concurrency": "3"})
    assert (topic().concurrency, topic().slots) == (3, {"token": 1})


def test_pausing_an_already_paused_topic_is_not_logged(admin_client):
    page = page_of(admin_client)
    Topic.objects.filter(name=TOPIC).update(paused=True)
    admin_client.post(PAGE, page | {"paused": "on"})
    assert topic().paused
    assert log_messages() == []


# -- reasons ---------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_pausing_from_the_list_requires_a_reason_if_the_topic_does(admin_client, action):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True, paused=action == "resume")
    form = {"action": action, "_selected_action": [TOPIC]}
    page = admin_client.post(LIST, form, follow=True).content.decode()
    assert f"A reason is required by {TOPIC}. Nothing was changed" in page
    assert topic().paused is (action == "resume")
    admin_client.post(LIST, form | {"reason": "The bank is down."})
    assert topic().paused is (action == "pause")
    assert log_messages() == [f"{action.title()}d: The bank is down."]


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_pausing_that_cannot_be_logged_changes_nothing(admin_client, monkeypatch, action):
    Topic.objects.update(paused=action == "resume")
    monkeypatch.setattr(audit_log, "record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        admin_client.post(LIST, {"action": action, "_selected_action": [TOPIC]})
    assert topic().paused is (action == "resume")


def test_an_optional_reason_is_stored(admin_client):
    admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC], "reason": "  The bank is down. "})
    assert log_messages() == ["Paused: The bank is down."]


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 256])
def test_an_invalid_reason_is_refused_and_nothing_is_changed(admin_client, reason):
    page = admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC], "reason": reason}, follow=True)
    assert "Enter one line of at most 255 printable characters" in page.content.decode()
    page = admin_client.post(PAGE, page_of(admin_client) | {"paused": "on", "reason": reason})
    assert page.context["adminform"].form.errors.keys() == {"reason"}
    assert not topic().paused


def test_the_page_requires_a_reason_for_pausing_only(admin_client):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    page = admin_client.post(PAGE, page_of(admin_client) | {"paused": "on"})
    assert "enter why it is paused or resumed" in page.content.decode()
    admin_client.post(
        PAGE, page_of(admin_client) | {"paused": "on", "ask_reason": ""}
    )  # switching the requirement off does not help
    assert not topic().paused
    admin_client.post(PAGE, page_of(admin_client) | {"concurrency": "3"})
    admin_client.post(PAGE, page_of(admin_client) | {"paused": "on", "reason": "The bank is down."})
    assert (topic().concurrency, topic().paused) == (3, True)


# -- adding topics ---------------------------------------------------------------------------


@pytest.fixture
def limited(staff):
    """A user who may add topics, but does not see every topic."""
    Topic.objects.create(name="secret.topic", visible_to=[999])
    return staff("delaytasks.view_topic", "delaytasks.add_topic", "delaytasks.view_job")


def test_the_form_does_not_reveal_whether_a_hidden_topic_exists(limited):
    answers = {
        name: limited.post(ADD, {"name": name}).content.decode().replace(name, "?").partition("<form id")[2]
        for name in ("secret.topic", "other.topic")
    }
    errors = {name: re.findall(r"You may not see every topic[^<]*", page) for name, page in answers.items()}
    assert errors["secret.topic"] == errors["other.topic"] != []
    assert "already exists" not in answers["secret.topic"]


def test_adding_a_topic_does_not_reveal_jobs_of_unknown_topics(limited):
    make_job("stray:1", topic="test.unknown")
    limited.post(ADD, {"name": "test.unknown"})
    assert not Topic.objects.filter(name="test.unknown").exists()
    assert b"stray:1" not in limited.get("/admin/delaytasks/job/").content


def test_a_visible_handled_topic_can_be_added(limited):
    Topic.objects.filter(name=TOPIC).delete()
    limited.post(ADD, {"name": TOPIC})
    assert Topic.objects.filter(name=TOPIC).exists()
