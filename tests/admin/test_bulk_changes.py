"""Bulk changes in the admin: progress, results, stopping, continuing, and the list of changes."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delaytasks.bulk import changes
from delaytasks.jobs import audit_log
from delaytasks.models import BulkChange, Job
from delaytasks.states import State

from .conftest import NOW, TOPIC, make_job

pytestmark = pytest.mark.usefixtures("no_worker")
CHANGES = "/admin/delaytasks/bulkchange/"


def started(count: int = 3, operation: str = "cancel", **terms: Any) -> BulkChange:
    selection = {"filters": {"state": "live", "q": "order:"}, "topics": {TOPIC: count}, "shown": count}
    jobs = [make_job(f"order:{n}") for n in range(count)]
    return changes.start(
        operation, [job.pk for job in jobs], by="anna", selection=terms.pop("selection", selection), **terms
    )


def page_of(client: Client, change: BulkChange) -> Any:
    return client.get(f"{CHANGES}{change.pk}/change/")


def progress_of(client: Client, change: BulkChange) -> dict[str, Any]:
    answer = client.get(f"{CHANGES}{change.pk}/progress/")
    assert answer["Content-Type"] == "application/json"
    assert "no-store" in answer["Cache-Control"]
    return answer.json()


def text_of(response: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def worked(change: BulkChange) -> BulkChange:
    while changes.work(change.pk, using="default"):
        pass
    change.refresh_from_db()
    return change


# One change


def test_the_page_shows_the_request(admin_client):
    change = started(3, "postpone", delay_ms=5_400_000, reason="bank closed")
    text = text_of(page_of(admin_client, change))
    assert "Postpone 3 jobs by 90 minutes" in text
    assert "By anna" in text
    assert "Why bank closed" in text
    assert "State live (not ended)" in text
    assert "Search order:" in text
    assert f"By topic {TOPIC} 3" in text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(1000, "1 second"), (1500, "1.5 seconds"), (90_000, "90 seconds"), (3_600_000, "1 hour"),
     (5_400_000, "90 minutes"), (129_600_000, "36 hours"), (86_400_000, "1 day"), (60_001, "60.001 seconds")],
)  # fmt: skip
def test_the_delay_is_shown_exactly(admin_client, ms, text):
    assert f"by {text} |" in text_of(page_of(admin_client, started(1, "postpone", delay_ms=ms)))


def test_the_progress_and_the_results_are_shown(admin_client, monkeypatch):
    monkeypatch.setattr(changes, "BATCH_SIZE", 4)
    running, gone = make_job("run:1", State.RESERVED), make_job("gone:1")
    waiting = [make_job(f"order:{n}") for n in range(30)]
    ids = [running.pk, gone.pk, *(job.pk for job in waiting)]
    Job.objects.filter(pk=gone.pk).delete()
    change = changes.start("cancel", ids, by="anna")
    changes.work(change.pk, using="default", seconds=0)
    half = progress_of(admin_client, change)
    assert (half["position"], half["total"], half["under_way"]) == (4, 32, True)
    assert half["done"] == "4 of 32 jobs"
    assert half["says"].startswith("In progress.")
    worked(change)
    whole = progress_of(admin_client, change)
    assert (whole["position"], whole["under_way"], whole["says"]) == (32, False, "Done. 32 jobs were processed.")
    results = {each["word"]: (each["count"], each["rest"]) for each in whole["outcomes"]}
    assert results == {"cancelled": ("30", "and 10 more"), "already running": ("1", ""), "no longer there": ("1", "")}
    assert whole["outcomes"][0]["word"] == "cancelled"
    by_word = {each["word"]: each["jobs"] for each in whole["outcomes"]}
    assert by_word["already running"] == [
        {"text": "run:1", "title": f"{TOPIC} run:1", "url": f"/admin/delaytasks/job/{running.pk}/change/"}
    ]
    assert by_word["no longer there"] == [{"text": f"job {gone.pk}", "title": "", "url": ""}]


def test_the_page_is_complete_without_scripts(admin_client):
    change = started(30)
    first = change.ids[0]
    page = page_of(admin_client, worked(change))
    text = text_of(page)
    assert "30 of 30 jobs" in text
    assert "cancelled 30" in text
    assert "and 10 more" in text
    assert f'<a href="/admin/delaytasks/job/{first}/change/" title="{TOPIC} order:0">order:0</a>' in (
        page.content.decode()
    )
    assert "<script>" not in page.content.decode(), "no inline script"
    assert "http-equiv" not in page.content.decode(), "no refresh after the end"


def test_a_running_change_refreshes_without_scripts_and_can_be_stopped(admin_client):
    page = page_of(admin_client, started()).content.decode()
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in page
    assert "Reload" in page
    assert "/stop/" in page


def test_the_page_says_that_no_worker_has_started(admin_client):
    change = started()
    assert progress_of(admin_client, change)["says"] == "Waiting for a worker."
    BulkChange.objects.update(created_at=NOW - timedelta(seconds=70))
    assert progress_of(admin_client, change)["says"].startswith("Waiting for a worker for more than 1 min.")


def test_the_page_says_that_there_is_no_progress(admin_client):
    change = started()
    BulkChange.objects.update(state="running", worked_at=NOW - timedelta(seconds=40), position=1)
    assert progress_of(admin_client, change)["says"].startswith("No progress for more than 40 s.")


def test_a_failed_change_shows_the_error_and_the_unprocessed_jobs(admin_client):
    change = started()
    changes.fail(change.pk, "Traceback:\n  File x\nZeroDivisionError: <b>", using="default")
    page = page_of(admin_client, change)
    assert "Failed. 3 jobs were not processed." in text_of(page)
    assert "ZeroDivisionError: &lt;b&gt;" in page.content.decode()


def test_an_unknown_result_is_shown_escaped(admin_client):
    change = started(1)
    BulkChange.objects.update(outcomes={"<i>odd</i>": 1}, samples={"<i>odd</i>": [[1, "<t>", "<k>"]]}, state="done")
    page = page_of(admin_client, change).content.decode()
    assert "&lt;i&gt;odd&lt;/i&gt;" in page
    assert not {"<i>odd", "<t>", "<k>"} & set(re.findall(r"<\w+>(?:odd)?", page))


@pytest.mark.on_both
def test_polling_the_progress_needs_few_queries_and_never_reads_the_ids(admin_client):
    change = started()
    with CaptureQueriesContext(connection) as captured:
        progress_of(admin_client, change)
    sent = [each["sql"] for each in captured.captured_queries]
    assert len(sent) <= 4, "session, user, topics, change"
    assert not [sql for sql in sent if '"ids"' in sql]


@pytest.mark.on_both
@pytest.mark.parametrize("number", ["0", "999999", "9" * 30, "x", "-1", "1.5"])
@pytest.mark.parametrize("part", ["change", "progress"])
def test_an_unknown_change_is_not_found(admin_client, number, part):
    assert admin_client.get(f"{CHANGES}{number}/{part}/").status_code == 404


# Stopping


def test_stopping_leaves_the_remaining_jobs_unchanged(admin_client, monkeypatch):
    monkeypatch.setattr(changes, "BATCH_SIZE", 2)
    change = started(5)
    changes.work(change.pk, using="default", seconds=0)
    answer = admin_client.post(f"{CHANGES}{change.pk}/stop/")
    assert answer["Location"] == f"{CHANGES}{change.pk}/change/"
    text = text_of(admin_client.get(answer["Location"]))
    assert "Stopped. 3 jobs were not processed." in text
    assert "2 of 5 jobs" in text
    assert not changes.work(change.pk, using="default")
    assert Job.objects.filter(state=State.DELAYED).count() == 3
    entry = LogEntry.objects.get(content_type__model="bulkchange")
    assert (entry.user.username, entry.object_id, entry.change_message) == ("admin", str(change.pk), "Stopped.")


def test_stopping_an_ended_change_has_a_message(admin_client):
    change = worked(started())
    answer = admin_client.post(f"{CHANGES}{change.pk}/stop/")
    assert [str(each) for each in get_messages(answer.wsgi_request)] == ["Not stopped: the change had already ended."]
    change.refresh_from_db()
    assert change.state == "done"
    assert not LogEntry.objects.filter(content_type__model="bulkchange").exists()
    assert "/stop/" not in page_of(admin_client, change).content.decode()


def test_a_get_request_stops_nothing(admin_client):
    change = started()
    assert admin_client.get(f"{CHANGES}{change.pk}/stop/").status_code == 405
    change.refresh_from_db()
    assert change.state == "waiting"


# Continuing


def test_a_stopped_change_continues_and_the_log_has_the_user(admin_client, monkeypatch):
    monkeypatch.setattr(changes, "BATCH_SIZE", 2)
    change = started(5)
    changes.work(change.pk, using="default", seconds=0)
    assert "/go-on/" not in page_of(admin_client, change).content.decode(), "it is in progress"
    admin_client.post(f"{CHANGES}{change.pk}/stop/")
    assert "/go-on/" in page_of(admin_client, change).content.decode()
    answer = admin_client.post(f"{CHANGES}{change.pk}/go-on/")
    assert answer["Location"] == f"{CHANGES}{change.pk}/change/"
    assert [str(each) for each in get_messages(answer.wsgi_request)][-1] == "The change continues where it stopped."
    assert progress_of(admin_client, change)["says"] == "Waiting for a worker."
    assert worked(change).outcomes == {"cancelled": 5}
    entries = LogEntry.objects.filter(content_type__model="bulkchange").order_by("pk")
    assert list(entries.values_list("user__username", "change_message")) == [
        ("admin", "Stopped."),
        ("admin", "Went on."),
    ]


@pytest.mark.parametrize(("verb", "state"), [("stop", "waiting"), ("go-on", "stopped")])
def test_stopping_and_continuing_that_cannot_be_logged_change_nothing(admin_client, monkeypatch, verb, state):
    change = started()
    BulkChange.objects.update(state=state)
    monkeypatch.setattr(audit_log, "record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        admin_client.post(f"{CHANGES}{change.pk}/{verb}/")
    assert BulkChange.objects.get().state == state


def test_a_failed_change_can_be_continued(admin_client):
    change = started(2)
    changes.fail(change.pk, "ZeroDivisionError", using="default")
    admin_client.post(f"{CHANGES}{change.pk}/go-on/")
    assert "ZeroDivisionError" not in page_of(admin_client, change).content.decode()
    assert worked(change).outcomes == {"cancelled": 2}


def test_a_change_is_not_continued_twice_or_by_get_or_without_remaining_jobs(admin_client):
    change = worked(started(2))
    assert "/go-on/" not in page_of(admin_client, change).content.decode()
    answer = admin_client.post(f"{CHANGES}{change.pk}/go-on/")
    texts = [str(each) for each in get_messages(answer.wsgi_request)]
    assert texts == ["Not continued: the change is in progress or has no jobs left."]
    assert admin_client.get(f"{CHANGES}{change.pk}/go-on/").status_code == 405
    assert not LogEntry.objects.filter(change_message="Went on.").exists()


def test_the_error_of_one_job_is_shown_with_its_type(admin_client):
    change = started(1)
    BulkChange.objects.update(
        outcomes={"error: ValueError": 1}, samples={"error: ValueError": [[1, TOPIC, "k"]]}, state="done", position=1
    )
    assert "failed: ValueError 1" in text_of(page_of(admin_client, change))


def test_locked_jobs_are_reported_as_being_retried(admin_client):
    change = started(3)
    BulkChange.objects.update(state="running", worked_at=NOW, position=1, put_off=change.ids[1:])
    assert progress_of(admin_client, change)["says"].startswith("2 jobs are left. Other transactions have locked them")


def test_times_use_the_clock_of_the_database(admin_client, db_clock):
    change = started()
    assert change.created_at == NOW
    db_clock.advance(seconds=70)
    assert progress_of(admin_client, change)["says"].startswith("Waiting for a worker for more than 1 min")


def test_bulk_changes_have_no_meaningless_permissions():
    assert not Permission.objects.filter(content_type__model="bulkchange").exists()


# All changes


def test_the_list_is_ordered_newest_first(admin_client):
    older = worked(started(2))
    Job.objects.all().delete()
    newer = started(3, "retry", reason="bank is back")
    page = admin_client.get(CHANGES)
    assert [change.pk for change in page.context["cl"].result_list] == [newer.pk, older.pk]
    text = text_of(page)
    assert "Retry 3 jobs" in text
    assert "cancelled 2" in text
    assert "bank is back" in text


@pytest.mark.on_both
def test_the_list_never_reads_the_ids_of_jobs(admin_client):
    started()
    with CaptureQueriesContext(connection) as captured:
        admin_client.get(CHANGES)
    assert not [each["sql"] for each in captured.captured_queries if '"ids"' in each["sql"]]


def test_changes_cannot_be_added_deleted_or_edited(admin_client):
    change = started()
    assert admin_client.get(f"{CHANGES}add/").status_code == 403
    assert admin_client.post(f"{CHANGES}{change.pk}/delete/", {"post": "yes"}).status_code == 403
    admin_client.post(f"{CHANGES}{change.pk}/change/", {"operation": "retry"})
    change.refresh_from_db()
    assert change.operation == "cancel"


def test_a_change_that_was_not_started_in_the_admin_is_shown(admin_client):
    job = make_job("order:1", due=timedelta(hours=2))
    change = worked(changes.start("run_now", [job.pk], by="a script"))
    assert "made ready 1" in text_of(page_of(admin_client, change))
    assert Job.objects.get().due_at == NOW
