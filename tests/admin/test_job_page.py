"""The page of a job: its fields, read-only, and its timeline."""

import re
from datetime import timedelta
from html import unescape
from typing import Any
from xml.etree import ElementTree

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import formatting
from delaytasks.admin import state_diagram
from delaytasks.admin.timeline import NEWEST
from delaytasks.clock import to_ms
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.redaction import HIDDEN
from delaytasks.states import MOVES, Outcome, State

from .conftest import NOW, TOPIC, make_event, make_job

TRACEBACK = 'Traceback (most recent call last):\n  File "bank.py", line 3\nValueError: no such <bank>'


def address(job: Job) -> str:
    return f"/admin/delaytasks/job/{job.pk}/change/"


def page_of(client: Any, job: Job) -> str:
    response = client.get(address(job))
    assert response.status_code == 200
    return response.content.decode()


def timeline(client: Any, job: Job) -> list[str]:
    """Return the text of each entry, newest first."""
    part = page_of(client, job).partition('<ol class="dt-timeline"')[2].partition("</ol>")[0]
    entries = re.findall(r"<li.*?</li>", part, re.DOTALL)
    return [re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", entry))).strip() for entry in entries]


def test_the_page_shows_the_body_as_readable_json(admin_client):
    job = make_job("order:1", body={"order": 1, "who": "Ünal", "lines": [1, 2]})
    lines = unescape(page_of(admin_client, job)).splitlines()
    assert {'  "order": 1', '  "who": "Ünal"', "    2"} <= {line.rstrip(",") for line in lines}


def test_the_page_has_no_editable_fields(admin_client):
    page = page_of(admin_client, make_job("order:1"))
    content = page.partition('id="content-main"')[2]
    assert set(re.findall(r'<input type="(\w+)"', content)) <= {"hidden"}
    assert "<textarea" not in content
    assert 'name="_save"' not in content


def test_the_timeline_shows_events_newest_first(admin_client):
    job = make_job("order:1", State.FINISHED, attempt=2, failures=1)
    due_ms = to_ms(job.due_at)
    make_event(
        job, Outcome.RESCHEDULED, attempt=0, done_ms=due_ms - 9000, next_due_ms=due_ms, actor="anna", reason="it rains"
    )
    make_event(
        job, Outcome.FAILED, attempt=1, reserved_ms=due_ms + 12, done_ms=due_ms + 352,
        next_due_ms=due_ms + 5000, worker="w1", error=TRACEBACK,
    )  # fmt: skip
    make_event(
        job, Outcome.FINISHED, attempt=2, due_ms=due_ms + 5000, reserved_ms=due_ms + 5003, done_ms=due_ms + 6234,
        worker="w2",
    )  # fmt: skip
    finished, second, failed, first, moved, scheduled = timeline(admin_client, job)
    assert finished == "2030-01-01 01:00:06.234 finished ran for 1,231 ms"
    assert second == "2030-01-01 01:00:05.003 reserved attempt 2 · by w2 · 3 ms late"
    assert failed.startswith(
        "2030-01-01 01:00:00.352 failed ran for 340 ms · due 2030-01-01 01:00:05.000 "
        "ValueError: no such <bank> Traceback"
    )
    assert first == "2030-01-01 01:00:00.012 reserved attempt 1 · by w1 · 12 ms late"
    assert moved == "2030-01-01 00:59:51.000 rescheduled due 2030-01-01 01:00:00.000 · by anna Reason: it rains"
    assert scheduled == "2029-12-31 22:00:00.000 scheduled"


def test_long_durations_are_also_shown_in_minutes(admin_client):
    job = make_job("order:1", State.FINISHED, attempt=1)
    due_ms = to_ms(job.due_at)
    make_event(job, Outcome.FINISHED, reserved_ms=due_ms + 90_000, done_ms=due_ms + 7_290_000)
    finished, reserved, _ = timeline(admin_client, job)
    assert finished.endswith("ran for 7,200,000 ms (2 h 0 min)")
    assert reserved.endswith("90,000 ms late (1 min)")


def test_a_job_scheduled_by_a_user_shows_the_user(admin_client):
    job = make_job("order:1")
    make_event(job, Outcome.SCHEDULED, done_ms=to_ms(job.created_at), actor="shop")
    assert timeline(admin_client, job) == ["2029-12-31 22:00:00.000 scheduled by shop"]


def test_a_traceback_is_folded(admin_client):
    job = make_job("order:1", State.DEAD, attempt=1, failures=1, error=TRACEBACK)
    make_event(job, Outcome.DEAD, error=TRACEBACK)
    page = page_of(admin_client, job)
    assert page.count("<details") == 2, "one for the job's last error, one in the timeline"
    assert "<details open" not in page
    assert page.count("no such &lt;bank&gt;</summary>") == 2


def test_a_running_job_shows_its_worker_and_lease(admin_client):
    job = make_job("order:1", State.RESERVED, due=timedelta(milliseconds=7))
    entry = timeline(admin_client, job)[0]
    assert entry == "2030-01-01 00:00:00.000 reserved attempt 1 · by w1 · 7 ms late · its lease ends in 1 min"


def test_a_long_timeline_omits_the_oldest_events(admin_client):
    job = make_job("order:1")
    for number in range(NEWEST + 5):
        make_event(job, Outcome.SNOOZED, attempt=number)
    assert len(timeline(admin_client, job)) == NEWEST
    assert "Older events are not shown." in page_of(admin_client, job)


def buttons_of(page: str) -> set[str]:
    return set(re.findall(r'name="action" value="(\w+)"', page))


BUTTONS = {
    State.DELAYED: {"run_jobs_now", "postpone_jobs", "cancel_jobs"},
    State.READY: {"postpone_jobs", "cancel_jobs"},
    State.RESERVED: set(),
    State.FINISHED: set(),
    State.CANCELLED: set(),
    State.DEAD: {"retry_jobs", "cancel_jobs"},
}


@pytest.mark.parametrize("state", list(State))
def test_the_page_offers_operations_that_can_succeed_in_its_state(admin_client, one_of_each, state):
    assert buttons_of(page_of(admin_client, one_of_each[state])) == BUTTONS[state]


@pytest.mark.parametrize("state", list(State))
def test_offered_operations_succeed_and_others_are_refused(admin_client, state):
    for number, action in enumerate(sorted(set().union(*BUTTONS.values()))):
        if (state, action) == (State.READY, "run_jobs_now"):
            continue  # not refused, but it changes nothing
        job = make_job(f"try:{number}", state)
        ((level, _text),) = press(admin_client, job, action, amount="2", unit="hours")
        assert level == ("success" if action in BUTTONS[state] else "warning"), action


def press(client: Any, job: Job, action: str, **fields: str) -> list[tuple[str, str]]:
    """Press a button of the job's page; return (level, text) of each message."""
    client.cookies.pop("messages", None)  # from previous requests
    response = client.post(
        "/admin/delaytasks/job/",
        {"action": action, "_selected_action": job.pk, "index": 0, "_job": 1, "confirmed": 1} | fields,
    )
    assert response.status_code == 302
    assert response["Location"] == address(job)
    return [(message.level_tag, message.message) for message in get_messages(response.wsgi_request)]


def test_a_dead_job_with_a_live_key_offers_no_retry_and_says_why(admin_client):
    dead = make_job("order:1", State.DEAD)
    live = make_job("order:1")
    page = page_of(admin_client, dead)
    assert buttons_of(page) == {"cancel_jobs"}
    assert f'<a href="{address(live)}">job {live.pk}</a>' in page


def test_a_job_is_postponed_from_its_due_time_by_the_delay_in_the_form(admin_client):
    job = make_job("order:1")
    assert 'name="amount"' in page_of(admin_client, job)
    [(level, text)] = press(admin_client, job, "postpone_jobs", amount="90", unit="minutes")
    assert (level, text.partition(",")[0]) == ("success", "postponed 1")
    job.refresh_from_db()
    assert job.due_at == NOW + timedelta(hours=2, minutes=30)


def test_users_who_may_only_view_get_no_buttons(staff):
    page = page_of(staff("delaytasks.view_job"), make_job("order:1"))
    assert 'name="action"' not in page
    assert 'name="reason"' not in page
    assert 'name="amount"' not in page


# Reasons


def test_a_reason_is_stored_and_shown(admin_client):
    job = make_job("order:1")
    press(admin_client, job, "cancel_jobs", reason="the customer called")
    event = JobEvent.objects.get(job=job)
    assert (event.outcome, event.actor, event.reason) == (Outcome.CANCELLED, "admin", "the customer called")
    assert LogEntry.objects.get().change_message == "Cancelled: the customer called"
    assert "Reason: the customer called" in timeline(admin_client, job)[0]


def test_the_answer_of_a_target_is_shown_as_one(admin_client):
    job = make_job("order:1", state=State.FINISHED)
    make_event(job, Outcome.FINISHED, reason="The receiver answered <204>.")
    assert "Answer: The receiver answered <204>." in timeline(admin_client, job)[0]


def test_a_reason_is_optional_unless_the_topic_requires_one(admin_client):
    job = make_job("order:1")
    page = page_of(admin_client, job)
    assert "required" not in page.partition('id="dt-reason"')[2].partition(">")[0]
    assert press(admin_client, job, "cancel_jobs") == [("success", "cancelled 1")]
    assert JobEvent.objects.get(job=job).reason == ""
    assert LogEntry.objects.get().change_message == "Cancelled."


@pytest.mark.parametrize("reason", [None, "", "   "])
def test_a_topic_that_requires_a_reason_gets_one(admin_client, reason):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    job = make_job("order:1")
    page = page_of(admin_client, job)
    assert "required" in page.partition('id="dt-reason"')[2].partition(">")[0]
    assert "This topic requires a reason." in page
    fields = {} if reason is None else {"reason": reason}
    answer = admin_client.post(
        "/admin/delaytasks/job/", {"action": "cancel_jobs", "_selected_action": job.pk, "index": 0, "_job": 1} | fields
    )
    job.refresh_from_db()
    assert job.state == State.DELAYED
    assert answer.status_code == 200, "the form is shown again"
    assert press(admin_client, job, "cancel_jobs", reason="fraud") == [("success", "cancelled 1")]


@pytest.mark.parametrize("reason", ["x" * 256, "a\x07b", "a\nb"])
def test_an_invalid_reason_changes_nothing(admin_client, reason):
    job = make_job("order:1")
    admin_client.post(
        "/admin/delaytasks/job/",
        {"action": "cancel_jobs", "_selected_action": job.pk, "index": 0, "_job": 1, "reason": reason},
    )
    job.refresh_from_db()
    assert job.state == State.DELAYED


# Secrets

SECRET = "4111-secret-value"


@pytest.mark.parametrize(
    "body",
    [
        {"password": SECRET},
        {"Password": SECRET, "userPassword2": SECRET},
        {"access_token": SECRET},
        {"refreshToken": SECRET},
        {"client-secret": SECRET},
        {"AUTHORIZATION": SECRET},
        {"headers": {"X-Api-Key": SECRET}},
        {"api key": SECRET, "apikey": SECRET},
        {"cardNumber": SECRET, "card": {"number": 1, "cvv": SECRET}},
        [{"name": "a"}, [{"token": SECRET}]],
        {"secrets": [SECRET, {"any": SECRET}]},
        {"token": {"deep": {"deeper": [SECRET]}}},
    ],
    ids=str,
)
def test_values_of_secret_looking_keys_are_not_shown(admin_client, body):
    page = page_of(admin_client, make_job("order:1", body=body))
    assert SECRET not in page
    assert HIDDEN in page


def test_other_values_are_shown(admin_client):
    body = {"order": 1042, "author": "Anna", "pinned": "shown", "tokens": [], "password": None, "secret": ""}
    page = unescape(page_of(admin_client, make_job("order:1", body=body)))
    for line in ('"order": 1042', '"author": "Anna"', '"pinned": "shown"', '"tokens": []', '"password": null'):
        assert line in page
    assert HIDDEN not in page


def test_the_settings_define_the_secret_names(admin_client, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDACT": ["Kunden-Nr"]}
    body = {"kundennr": SECRET, "KUNDEN_NR": SECRET, "password": "shown"}
    page = page_of(admin_client, make_job("order:1", body=body))
    assert SECRET not in page
    assert "shown" in page


def test_the_stored_body_is_not_redacted(admin_client):
    job = make_job("order:1", body={"token": SECRET})
    page_of(admin_client, job)
    job.refresh_from_db()
    assert job.body == {"token": SECRET}


def test_a_body_of_any_shape_can_be_displayed(admin_client):
    deep: Any = SECRET
    for _ in range(99):
        deep = [deep]
    for number, body in enumerate(([], "text", 5, True, deep, {"": {"": 1}})):
        page_of(admin_client, make_job(f"order:{number}", body=body))


def test_the_page_says_when_a_running_job_runs_again(admin_client):
    job = make_job("order:1", State.RESERVED)
    version = mark_of(admin_client, job)
    Job.objects.update(again=True, again_due_at=NOW + timedelta(minutes=5), again_ttr_ms=1000, again_body={})
    page = page_of(admin_client, job)
    field = page.partition('class="form-row field-next_run"')[2].partition("field-worker")[0]
    assert "Runs again at:" in field
    assert (NOW + timedelta(minutes=5)).isoformat()[:19] in field
    assert mark_of(admin_client, job) != version, "an open page is updated"


def mark_of(client: Any, job: Job) -> str:
    return client.get(f"/admin/delaytasks/job/{job.pk}/now/").json()["mark"]


def test_the_event_of_a_next_run_does_not_hide_when_the_job_was_scheduled(admin_client):
    job = make_job("order:1", State.RESERVED)
    make_event(job, Outcome.SCHEDULED, actor="alice")
    assert sum(entry.count("scheduled") for entry in timeline(admin_client, job)) == 2


# The diagram


@pytest.mark.parametrize("state", list(State))
def test_the_diagram_has_every_move_and_marks_the_current_state(admin_client, one_of_each, state):
    page = page_of(admin_client, one_of_each[state])
    svg = ElementTree.fromstring(re.search(r'<svg class="dt-life".*?</svg>', page, re.DOTALL)[0])
    arrows = {arrow.get("data-move"): arrow for arrow in svg.iter("g") if "dt-arrow" in arrow.get("class")}
    assert set(arrows) == {f"{move.before.word}-{move.after.word}" for move in MOVES}
    assert {move for move, arrow in arrows.items() if "dt-open" in arrow.get("class")} == {
        f"{move.before.word}-{move.after.word}" for move in MOVES if move.before is state
    }
    nodes = {node.find("text").text: node for node in svg.iter("g") if "dt-node" in node.get("class")}
    assert set(nodes) == {str(formatting.STATES[each]) for each in State}
    assert [name for name, node in nodes.items() if "dt-here" in node.get("class")] == [state.word]


def test_every_state_has_a_position_in_the_diagram():
    assert set(state_diagram.POSITIONS) == set(State)
    assert len(set(state_diagram.POSITIONS.values())) == len(State)


def test_the_diagram_has_a_text_alternative(admin_client, one_of_each):
    page = page_of(admin_client, one_of_each[State.READY])
    assert 'role="img" aria-labelledby="dt-life-title dt-life-text"' in page
    assert '<desc id="dt-life-text">This job is ready. It can become reserved, cancelled, delayed.</desc>' in page
    assert "This job is finished. This is a final state." in page_of(admin_client, one_of_each[State.FINISHED])


def test_the_diagram_fits_its_view_box_and_its_arrows_touch_the_boxes():
    for before, after in {(move.before, move.after) for move in MOVES}:
        start, control, end = state_diagram._route(before, after)
        assert on_the_edge(start, before)
        assert on_the_edge(end, after)
        for t in (0, 0.25, 0.5, 0.75, 1):
            x, y = (
                (1 - t) ** 2 * a + 2 * t * (1 - t) * c + t * t * b for a, c, b in zip(start, control, end, strict=True)
            )
            assert 2 <= x <= state_diagram.WIDTH - 2, f"{before.word} to {after.word}"
            assert 2 <= y <= state_diagram.HEIGHT - 2, f"{before.word} to {after.word}"
    for state in State:
        x, y = state_diagram._centre(state)
        assert 46 < x < state_diagram.WIDTH - 46
        assert 17 < y < state_diagram.HEIGHT - 17


def on_the_edge(point: Any, state: State) -> bool:
    middle = state_diagram._centre(state)
    dx, dy = abs(point.x - middle.x) - 46, abs(point.y - middle.y) - 17
    return max(dx, dy) == pytest.approx(0, abs=0.01)


# Other


def test_stored_values_are_escaped(admin_client):
    hostile = "<script>alert(1)</script>"
    job = make_job(hostile, State.RESERVED, topic=hostile, body={hostile: hostile}, error=hostile, worker=hostile)
    make_event(
        job, Outcome.FAILED, error=f"{hostile}\n{hostile}", worker=hostile, actor=hostile, reason=hostile, reserved_ms=1
    )
    assert "<script>alert" not in page_of(admin_client, job)
    assert "<script>alert" not in admin_client.get(f"/admin/delaytasks/job/{job.pk}/history/").content.decode()


@pytest.mark.on_both
def test_a_page_needs_few_queries(admin_client):
    job = make_job("order:1")
    for _ in range(20):
        make_event(job, Outcome.SNOOZED)
    page_of(admin_client, job)  # fills Django's cache of content types
    with CaptureQueriesContext(connection) as captured:
        page_of(admin_client, job)
    reads = [query["sql"] for query in captured.captured_queries if "SAVEPOINT" not in query["sql"]]
    assert len(reads) <= 7, "session, user, topics, job, time, events, rules of the topic"


@pytest.mark.on_both
@pytest.mark.parametrize("number", ["999999", "nonsense", str(2**63), "0"])
def test_an_unknown_job_is_not_found(admin_client, number):
    for page in ("change", "history", "delete"):
        assert admin_client.get(f"/admin/delaytasks/job/{number}/{page}/").status_code == 404


def test_failures_are_shown_with_the_maximum_of_the_topic(admin_client):
    assert "1 of 3" in page_of(admin_client, make_job("order:1", attempt=1, failures=1))


def test_times_are_in_the_active_time_zone_to_the_millisecond(admin_client, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    job = make_job("order:1", due=timedelta(milliseconds=1234))
    assert "2030-01-01 09:00:01.234" in page_of(admin_client, job)
    assert NOW + timedelta(milliseconds=1234) == job.due_at


def test_the_page_explains_the_attempt_without_words_of_programmers(admin_client):
    job = make_job("order:1")
    page = admin_client.get(f"/admin/delaytasks/job/{job.pk}/change/").content.decode()
    assert "number of times that it was started" in page
    assert "fencing token" not in page
