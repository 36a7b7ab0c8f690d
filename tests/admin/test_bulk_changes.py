"""A bulk change in the admin: how far it is, what became of its jobs, stopping it, and the list of all changes."""

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

from delaytasks import bulk
from delaytasks.models import BulkChange, Job
from delaytasks.states import State

from .conftest import NOW, TOPIC, make_job

CHANGES = "/admin/delaytasks/bulkchange/"


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "send", lambda pk, using: None)


def started(count: int = 3, operation: str = "cancel", **terms: Any) -> BulkChange:
    wish = {"filters": {"state": "live", "q": "order:"}, "topics": {TOPIC: count}, "shown": count}
    jobs = [make_job(f"order:{n}") for n in range(count)]
    return bulk.start(operation, [job.pk for job in jobs], by="anna", wish=terms.pop("wish", wish), **terms)


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
    while bulk.work(change.pk, using="default"):
        pass
    change.refresh_from_db()
    return change


# One change


def test_the_page_says_what_was_asked_for(admin_client):
    change = started(3, "postpone", delay_ms=5_400_000, reason="bank closed")
    text = text_of(page_of(admin_client, change))
    assert "Postpone 3 jobs by 90 minutes" in text
    assert "By anna" in text
    assert "Why bank closed" in text
    assert "State live (not ended)" in text
    assert "Search order:" in text
    assert f"Topics among them {TOPIC} 3" in text


@pytest.mark.parametrize(
    ("ms", "said"),
    [(1000, "1 second"), (1500, "1.5 seconds"), (90_000, "90 seconds"), (3_600_000, "1 hour"),
     (5_400_000, "90 minutes"), (129_600_000, "36 hours"), (86_400_000, "1 day"), (60_001, "60.001 seconds")],
)  # fmt: skip
def test_by_how_much_is_told_exactly(admin_client, ms, said):
    assert f"by {said} |" in text_of(page_of(admin_client, started(1, "postpone", delay_ms=ms)))


def test_how_far_it_is_and_what_became_of_each(admin_client, monkeypatch):
    monkeypatch.setattr(bulk, "PIECE", 4)
    running, gone = make_job("run:1", State.RESERVED), make_job("gone:1")
    waiting = [make_job(f"order:{n}") for n in range(30)]
    ids = [running.pk, gone.pk, *(job.pk for job in waiting)]
    Job.objects.filter(pk=gone.pk).delete()
    change = bulk.start("cancel", ids, by="anna")
    bulk.work(change.pk, using="default", seconds=0)
    half = progress_of(admin_client, change)
    assert (half["position"], half["total"], half["under_way"]) == (4, 32, True)
    assert half["done"] == "4 of 32 jobs"
    assert half["says"].startswith("Under way.")
    worked(change)
    whole = progress_of(admin_client, change)
    assert (whole["position"], whole["under_way"], whole["says"]) == (32, False, "Done. 32 jobs were looked at.")
    said = {each["word"]: (each["count"], each["rest"]) for each in whole["outcomes"]}
    assert said == {"cancelled": ("30", "and 10 more"), "already running": ("1", ""), "no longer there": ("1", "")}
    assert whole["outcomes"][0]["word"] == "cancelled"
    by_word = {each["word"]: each["jobs"] for each in whole["outcomes"]}
    assert by_word["already running"] == [
        {"text": "run:1", "title": f"{TOPIC} run:1", "url": f"/admin/delaytasks/job/{running.pk}/change/"}
    ]
    assert by_word["no longer there"] == [{"text": f"job {gone.pk}", "title": "", "url": ""}]


def test_the_page_without_scripts_has_all_of_it_too(admin_client):
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
    assert "http-equiv" not in page.content.decode(), "nothing is left to be waited for"


def test_a_change_under_way_is_shown_anew_without_scripts_and_can_be_stopped(admin_client):
    page = page_of(admin_client, started()).content.decode()
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in page
    assert "Reload" in page
    assert "/stop/" in page


def test_it_is_said_honestly_that_nobody_has_begun(admin_client):
    change = started()
    assert progress_of(admin_client, change)["says"] == "Waiting for a worker."
    BulkChange.objects.update(created_at=NOW - timedelta(seconds=70))
    assert progress_of(admin_client, change)["says"].startswith(
        "Waiting for a worker: for more than 1 min none has begun."
    )


def test_it_is_said_honestly_that_nobody_goes_on(admin_client):
    change = started()
    BulkChange.objects.update(state="running", worked_at=NOW - timedelta(seconds=40), position=1)
    assert progress_of(admin_client, change)["says"].startswith("Nobody has gone on with it for more than 40 s.")


def test_a_change_that_failed_says_why_and_what_was_left(admin_client):
    change = started()
    bulk.fail(change.pk, "Traceback:\n  File x\nZeroDivisionError: <b>", using="default")
    page = page_of(admin_client, change)
    assert "It failed. 3 jobs were left as they are." in text_of(page)
    assert "ZeroDivisionError: &lt;b&gt;" in page.content.decode()


def test_an_outcome_that_has_no_word_is_shown_as_it_stands_and_escaped(admin_client):
    change = started(1)
    BulkChange.objects.update(outcomes={"<i>odd</i>": 1}, samples={"<i>odd</i>": [[1, "<t>", "<k>"]]}, state="done")
    page = page_of(admin_client, change).content.decode()
    assert "&lt;i&gt;odd&lt;/i&gt;" in page
    assert not {"<i>odd", "<t>", "<k>"} & set(re.findall(r"<\w+>(?:odd)?", page))


def test_following_a_change_costs_few_queries_and_never_reads_its_numbers(admin_client):
    change = started()
    with CaptureQueriesContext(connection) as captured:
        progress_of(admin_client, change)
    sent = [each["sql"] for each in captured.captured_queries]
    assert len(sent) <= 4, "session, user, topics, change"
    assert not [sql for sql in sent if '"ids"' in sql]


@pytest.mark.parametrize("number", ["0", "999999", "9" * 30, "x", "-1", "1.5"])
@pytest.mark.parametrize("part", ["change", "progress"])
def test_a_change_that_there_is_not_is_not_found(admin_client, number, part):
    assert admin_client.get(f"{CHANGES}{number}/{part}/").status_code == 404


# Stopping


def test_stopping_leaves_the_rest_and_says_so(admin_client, monkeypatch):
    monkeypatch.setattr(bulk, "PIECE", 2)
    change = started(5)
    bulk.work(change.pk, using="default", seconds=0)
    answer = admin_client.post(f"{CHANGES}{change.pk}/stop/")
    assert answer["Location"] == f"{CHANGES}{change.pk}/change/"
    text = text_of(admin_client.get(answer["Location"]))
    assert "Stopped. 3 jobs were left as they are." in text
    assert "2 of 5 jobs" in text
    assert not bulk.work(change.pk, using="default")
    assert Job.objects.filter(state=State.DELAYED).count() == 3
    entry = LogEntry.objects.get(content_type__model="bulkchange")
    assert (entry.user.username, entry.object_id, entry.change_message) == ("admin", str(change.pk), "Stopped.")


def test_stopping_what_has_ended_says_so(admin_client):
    change = worked(started())
    answer = admin_client.post(f"{CHANGES}{change.pk}/stop/")
    assert [str(each) for each in get_messages(answer.wsgi_request)] == ["Not stopped: it had ended before."]
    change.refresh_from_db()
    assert change.state == "done"
    assert not LogEntry.objects.filter(content_type__model="bulkchange").exists()
    assert "/stop/" not in page_of(admin_client, change).content.decode()


def test_a_mere_visit_stops_nothing(admin_client):
    change = started()
    assert admin_client.get(f"{CHANGES}{change.pk}/stop/").status_code == 405
    change.refresh_from_db()
    assert change.state == "waiting"


# Going on


def test_what_was_stopped_goes_on_where_it_was_and_the_log_says_who_wanted_it(admin_client, monkeypatch):
    monkeypatch.setattr(bulk, "PIECE", 2)
    change = started(5)
    bulk.work(change.pk, using="default", seconds=0)
    assert "/go-on/" not in page_of(admin_client, change).content.decode(), "it is under way"
    admin_client.post(f"{CHANGES}{change.pk}/stop/")
    assert "/go-on/" in page_of(admin_client, change).content.decode()
    answer = admin_client.post(f"{CHANGES}{change.pk}/go-on/")
    assert answer["Location"] == f"{CHANGES}{change.pk}/change/"
    assert [str(each) for each in get_messages(answer.wsgi_request)][-1] == "It goes on where it was."
    assert progress_of(admin_client, change)["says"] == "Waiting for a worker."
    assert worked(change).outcomes == {"cancelled": 5}
    told = LogEntry.objects.filter(content_type__model="bulkchange").order_by("pk")
    assert list(told.values_list("user__username", "change_message")) == [("admin", "Stopped."), ("admin", "Went on.")]


def test_a_change_that_failed_goes_on(admin_client):
    change = started(2)
    bulk.fail(change.pk, "ZeroDivisionError", using="default")
    admin_client.post(f"{CHANGES}{change.pk}/go-on/")
    assert "ZeroDivisionError" not in page_of(admin_client, change).content.decode()
    assert worked(change).outcomes == {"cancelled": 2}


def test_nothing_is_gone_on_with_twice_by_a_mere_visit_or_where_nothing_is_left(admin_client):
    change = worked(started(2))
    assert "/go-on/" not in page_of(admin_client, change).content.decode()
    answer = admin_client.post(f"{CHANGES}{change.pk}/go-on/")
    said = [str(each) for each in get_messages(answer.wsgi_request)]
    assert said == ["It does not go on: it is under way, or nothing of it is left."]
    assert admin_client.get(f"{CHANGES}{change.pk}/go-on/").status_code == 405
    assert not LogEntry.objects.filter(change_message="Went on.").exists()


def test_an_error_of_one_job_has_a_word_and_its_type(admin_client):
    change = started(1)
    BulkChange.objects.update(
        outcomes={"error: ValueError": 1}, samples={"error: ValueError": [[1, TOPIC, "k"]]}, state="done", position=1
    )
    assert "failed: ValueError 1" in text_of(page_of(admin_client, change))


def test_what_somebody_else_holds_is_said_to_be_tried_again(admin_client):
    change = started(3)
    BulkChange.objects.update(state="running", worked_at=NOW, position=1, put_off=change.ids[1:])
    assert progress_of(admin_client, change)["says"].startswith("2 jobs are left. Somebody else is changing them")


def test_the_clock_is_the_databases_and_not_the_web_hosts(admin_client, db_clock):
    change = started()
    assert change.created_at == NOW
    db_clock.advance(seconds=70)
    assert progress_of(admin_client, change)["says"].startswith("Waiting for a worker: for more than 1 min")


def test_django_keeps_no_rights_to_bulk_changes_that_would_mean_nothing():
    assert not Permission.objects.filter(content_type__model="bulkchange").exists()


# All changes


def test_the_list_has_them_newest_first(admin_client):
    older = worked(started(2))
    Job.objects.all().delete()
    newer = started(3, "retry", reason="bank is back")
    page = admin_client.get(CHANGES)
    assert [change.pk for change in page.context["cl"].result_list] == [newer.pk, older.pk]
    text = text_of(page)
    assert "Retry 3 jobs" in text
    assert "cancelled 2" in text
    assert "bank is back" in text


def test_the_list_never_reads_which_jobs(admin_client):
    started()
    with CaptureQueriesContext(connection) as captured:
        admin_client.get(CHANGES)
    assert not [each["sql"] for each in captured.captured_queries if '"ids"' in each["sql"]]


def test_changes_are_neither_added_nor_deleted_nor_edited_here(admin_client):
    change = started()
    assert admin_client.get(f"{CHANGES}add/").status_code == 403
    assert admin_client.post(f"{CHANGES}{change.pk}/delete/", {"post": "yes"}).status_code == 403
    admin_client.post(f"{CHANGES}{change.pk}/change/", {"operation": "retry"})
    change.refresh_from_db()
    assert change.operation == "cancel"


def test_a_change_that_was_begun_elsewhere_is_shown_too(admin_client):
    job = make_job("order:1", due=timedelta(hours=2))
    change = worked(bulk.start("run_now", [job.pk], by="a script"))
    assert "made ready 1" in text_of(page_of(admin_client, change))
    assert Job.objects.get().due_at == NOW
