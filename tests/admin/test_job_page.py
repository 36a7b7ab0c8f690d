"""The page of one job: everything about it, read-only, and what happened as a timeline."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks.admin.timeline import NEWEST
from delaytasks.clock import to_ms
from delaytasks.models import Job
from delaytasks.states import Outcome, State

from .conftest import NOW, make_event, make_job

TRACEBACK = 'Traceback (most recent call last):\n  File "bank.py", line 3\nValueError: no such <bank>'


def address(job: Job) -> str:
    return f"/admin/delaytasks/job/{job.pk}/change/"


def page_of(client: Any, job: Job) -> str:
    response = client.get(address(job))
    assert response.status_code == 200
    return response.content.decode()


def timeline(client: Any, job: Job) -> list[str]:
    """The text of each entry, newest first."""
    part = page_of(client, job).partition('<ol class="dt-timeline"')[2].partition("</ol>")[0]
    entries = re.findall(r"<li.*?</li>", part, re.DOTALL)
    return [re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", entry))).strip() for entry in entries]


def test_the_page_shows_the_body_as_readable_json(admin_client):
    job = make_job("order:1", body={"order": 1, "who": "Ünal", "lines": [1, 2]})
    lines = unescape(page_of(admin_client, job)).splitlines()
    assert {'  "order": 1', '  "who": "Ünal"', "    2"} <= {line.rstrip(",") for line in lines}


def test_the_page_has_no_field_to_fill_in(admin_client):
    page = page_of(admin_client, make_job("order:1"))
    content = page.partition('id="content-main"')[2]
    assert set(re.findall(r'<input type="(\w+)"', content)) == {"hidden"}
    assert "<textarea" not in content
    assert 'name="_save"' not in content


def test_the_timeline_tells_what_happened_newest_first(admin_client):
    job = make_job("order:1", State.FINISHED, attempt=2, failures=1)
    due_ms = to_ms(job.due_at)
    make_event(job, Outcome.RESCHEDULED, attempt=0, done_ms=due_ms - 9000, next_due_ms=due_ms, actor="anna")
    make_event(
        job, Outcome.FAILED, attempt=1, reserved_ms=due_ms + 12, done_ms=due_ms + 352,
        next_due_ms=due_ms + 5000, worker="w1", error=TRACEBACK,
    )  # fmt: skip
    make_event(
        job, Outcome.FINISHED, attempt=2, due_ms=due_ms + 5000, reserved_ms=due_ms + 5003, done_ms=due_ms + 6234,
        worker="w2",
    )  # fmt: skip
    finished, failed, moved, scheduled = timeline(admin_client, job)
    assert finished == "2030-01-01 01:00:06.234 finished attempt 2 · 3 ms late · ran for 1,231 ms · worker w2"
    assert failed.startswith(
        "2030-01-01 01:00:00.352 failed attempt 1 · 12 ms late · ran for 340 ms · due 2030-01-01 01:00:05.000 · "
        "worker w1 ValueError: no such <bank> Traceback"
    )
    assert moved == "2030-01-01 00:59:51.000 rescheduled due 2030-01-01 01:00:00.000 · by anna"
    assert scheduled == "2029-12-31 22:00:00.000 scheduled"


def test_a_traceback_is_folded(admin_client):
    job = make_job("order:1", State.DEAD, attempt=1, failures=1, error=TRACEBACK)
    make_event(job, Outcome.DEAD, error=TRACEBACK)
    page = page_of(admin_client, job)
    assert page.count("<details") == 2, "one for the job's last error, one in the timeline"
    assert "<details open" not in page
    assert page.count("no such &lt;bank&gt;</summary>") == 2


def test_a_running_job_says_who_runs_it_and_for_how_long_it_may(admin_client):
    entry = timeline(admin_client, make_job("order:1", State.RESERVED))[0]
    assert entry == "2030-01-01 00:00:00.000 reserved attempt 1 · its lease ends in 1 min · worker w1"


def test_a_long_history_is_cut_at_its_old_end(admin_client):
    job = make_job("order:1")
    for number in range(NEWEST + 5):
        make_event(job, Outcome.SNOOZED, attempt=number)
    assert len(timeline(admin_client, job)) == NEWEST
    assert "Older events are not shown." in page_of(admin_client, job)


@pytest.mark.parametrize(
    ("state", "buttons"),
    [
        (State.DELAYED, {"run_jobs_now", "cancel_jobs"}),
        (State.READY, {"cancel_jobs"}),
        (State.RESERVED, set()),
        (State.FINISHED, set()),
        (State.CANCELLED, set()),
        (State.DEAD, {"retry_jobs"}),
    ],
)
def test_the_page_offers_what_can_succeed_in_its_state(admin_client, one_of_each, state, buttons):
    page = page_of(admin_client, one_of_each[state])
    assert set(re.findall(r'name="action" value="(\w+)"', page)) == buttons


def test_who_may_only_look_is_offered_nothing(staff):
    page = page_of(staff("delaytasks.view_job"), make_job("order:1"))
    assert 'name="action"' not in page


def test_nothing_that_is_stored_becomes_html(admin_client):
    hostile = "<script>alert(1)</script>"
    job = make_job(hostile, State.RESERVED, topic=hostile, body={hostile: hostile}, error=hostile, worker=hostile)
    make_event(job, Outcome.FAILED, error=f"{hostile}\n{hostile}", worker=hostile, actor=hostile, reserved_ms=1)
    assert "<script>alert" not in page_of(admin_client, job)
    assert "<script>alert" not in admin_client.get(f"/admin/delaytasks/job/{job.pk}/history/").content.decode()


def test_a_page_costs_a_handful_of_queries(admin_client):
    job = make_job("order:1")
    for _ in range(20):
        make_event(job, Outcome.SNOOZED)
    with CaptureQueriesContext(connection) as captured:
        page_of(admin_client, job)
    reads = [query["sql"] for query in captured.captured_queries if "SAVEPOINT" not in query["sql"]]
    assert len(reads) <= 5, "session, user, the job, the time, its events"


@pytest.mark.parametrize("number", ["999999", "nonsense", str(2**63), "0"])
def test_a_job_that_is_not_there_leads_home(admin_client, number):
    assert admin_client.get(f"/admin/delaytasks/job/{number}/change/").status_code == 302


def test_the_failures_are_told_against_what_the_topic_allows(admin_client):
    assert "1 of 3" in page_of(admin_client, make_job("order:1", attempt=1, failures=1))


def test_times_are_in_the_active_time_zone_to_the_millisecond(admin_client, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    job = make_job("order:1", due=timedelta(milliseconds=1234))
    assert "2030-01-01 09:00:01.234" in page_of(admin_client, job)
    assert NOW + timedelta(milliseconds=1234) == job.due_at
