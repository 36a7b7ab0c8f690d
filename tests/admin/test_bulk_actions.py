"""Changing all jobs that match the list's filters: the confirmation page and the started change."""

import re
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delaytasks.bulk import changes
from delaytasks.db import pagination
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.states import State

from .conftest import NOW, TOPIC, make_job

LIST, ALL = "/admin/delaytasks/job/", "/admin/delaytasks/job/all/"
OTHER = "test.other"


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the changes that were sent to a worker."""
    sent_ids: list[int] = []
    monkeypatch.setattr(changes, "send", lambda pk, using: sent_ids.append(pk))
    return sent_ids


def make_jobs(count: int, *, prefix: str = "many", **columns: Any) -> list[Job]:
    """Create delayed jobs that are due at intervals of a minute."""
    defaults = {"topic": TOPIC, "state": State.DELAYED, "ttr_ms": 1, "created_at": NOW}
    return Job.objects.bulk_create(
        Job(key=f"{prefix}:{n:06}", due_at=NOW + timedelta(minutes=n + 1), **defaults | columns) for n in range(count)
    )


def fill_up(count: int) -> None:
    """Create more delayed jobs with one statement."""
    columns = "topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, worker, error"
    model = make_job("model")
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %s)
            INSERT INTO delaytasks_job ({columns})
            SELECT {columns.replace("key", "key || i")} FROM delaytasks_job, n WHERE id = %s
            """,
            [count - 1, model.pk],
        )


def text_of(response: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def hidden(response: Any, name: str) -> str:
    return unescape(re.search(rf'name="{name}" value="([^"]*)"', response.content.decode())[1])  # type: ignore[index]


def confirm(client: Client, query: dict[str, str], page: Any = None, **data: Any) -> Any:
    """Submit the confirmation page of these filters."""
    page = page or client.get(ALL, query)
    kept: dict[str, Any] = {name: hidden(page, name) for name in ("shown", "once")}
    kept["listed"] = re.findall(r'name="listed" value="([^"]*)"', page.content.decode())
    return client.post(page.wsgi_request.get_full_path(), kept | {"unit": "hours", "amount": "", "reason": ""} | data)


def started_change(response: Any) -> BulkChange:
    """Return the change that a confirmation started and redirected to."""
    assert response.status_code == 302, text_of(response)
    change = BulkChange.objects.latest("pk")
    assert response["Location"] == f"/admin/delaytasks/bulkchange/{change.pk}/change/"
    return change


# The link


def link_in(response: Any) -> str | None:
    found = re.search(r'href="([^"]+/all/[^"]*)"', response.content.decode())
    return unescape(found[1]) if found else None


@pytest.mark.parametrize(
    "query", [{"state": "live"}, {"topic": TOPIC}, {"due": "later"}, {"q": "one:"}, {"state": "dead", "q": "one:d"}]
)
def test_a_filtered_or_searched_list_offers_to_change_all_matches(admin_client, one_of_each, query):
    make_job("one:far", due=timedelta(days=3))
    link = link_in(admin_client.get(LIST, query))
    assert link is not None
    assert admin_client.get(link).context["filters"]


@pytest.mark.parametrize("query", [{}, {"q": "  "}, {"o": "1"}])
def test_an_unfiltered_list_does_not_offer_to_change_all_matches(admin_client, one_of_each, query):
    assert link_in(admin_client.get(LIST, query)) is None


def test_all_jobs_can_be_chosen_explicitly(admin_client, one_of_each):
    link = link_in(admin_client.get(LIST, {"all": "1"}))
    assert admin_client.get(link).context["count"] == len(one_of_each)


def test_without_a_filter_the_page_asks_which_jobs(admin_client, one_of_each):
    page = admin_client.get(ALL)
    assert "Choose first which jobs to change" in text_of(page)
    assert 'name="once"' not in page.content.decode()
    assert admin_client.get(ALL + page.context["everything_url"]).context["count"] == len(one_of_each)


@pytest.mark.on_both
def test_a_forged_id_of_the_confirmation_page_is_ignored(admin_client, one_of_each):
    change = started_change(confirm(admin_client, {"state": "dead"}, what="retry", once="\0"))
    assert change.selection["once"] == ""


def test_a_confirmation_without_a_filter_changes_nothing(admin_client, one_of_each):
    admin_client.post(ALL, {"what": "cancel", "shown": "6"})
    assert not BulkChange.objects.exists()


def test_the_page_of_the_list_is_ignored(admin_client):
    make_jobs(150)
    first = admin_client.get(LIST, {"state": "live"})
    following = admin_client.get(first.context["cl"].next_url and LIST + first.context["cl"].next_url)
    assert len(following.context["cl"].result_list) == 50
    assert link_in(following) == ALL + "?state=live"
    page = admin_client.get(ALL, {"state": "live", "p": following.wsgi_request.GET["p"]})
    assert page.context["count"] == 150
    assert page.context["first"][0]["key"] == "many:000000", "the first of all pages"


# The confirmation page


def test_the_page_shows_exact_counts_by_topic_and_the_first_ten_jobs(admin_client):
    Topic.objects.create(name=OTHER)
    make_jobs(1100)
    make_jobs(3, topic=OTHER)
    page = admin_client.get(ALL, {"state": "delayed"})
    text = text_of(page)
    assert "1,103 jobs match" in text
    assert "State delayed" in text
    assert f"{TOPIC} 1,100" in text
    assert f"{OTHER} 3" in text
    assert "The first 10 of them" in text
    assert [row["key"] for row in page.context["first"]] == [
        job.key for job in admin_client.get(LIST, {"state": "delayed"}).context["cl"].result_list[:10]
    ]


def test_the_page_says_how_many_jobs_have_ended_already(admin_client, one_of_each):
    make_jobs(5)
    text = text_of(admin_client.get(ALL, {"topic": TOPIC}))
    assert "11 jobs match" in text
    assert "2 of them have finished or were cancelled and cannot be changed." in text
    assert "cannot be changed" not in text_of(admin_client.get(ALL, {"state": "live"}))


EVERY_CHOICE = [
    {"all": "1"}, {"topic": TOPIC}, {"topic": "none"}, {"q": "one:"}, {"q": "o"}, {"q": "3"},
    {"q": "one:", "state": "dead"}, {"q": "one:", "topic": TOPIC, "due": "overdue"}, {"state": "live", "due": "today"},
    *({"state": word} for word in ("live", "delayed", "ready", "reserved", "dead")),
    *({"due": due} for due in ("overdue", "hour", "today", "day", "later")),
]  # fmt: skip


@pytest.mark.parametrize("query", EVERY_CHOICE, ids=str)
def test_the_change_applies_to_the_listed_jobs_in_the_order_of_the_list(admin_client, one_of_each, query):
    Topic.objects.create(name=OTHER)
    for number in range(3):
        make_job(f"3:{number}", due=timedelta(hours=20 * number), topic=OTHER)
    listed = [job.pk for job in admin_client.get(LIST, query).context["cl"].result_list]
    page = admin_client.get(ALL, query)
    if not listed:
        assert page.context["refused"] == "none"
        return
    if query.get("state") == "reserved":
        assert page.context["refused"] == "ended", "none of these can be changed"
        return
    what = "retry" if query.get("state") == "dead" else "cancel"
    ids = started_change(confirm(admin_client, query, page, what=what)).ids
    assert sorted(ids) == sorted(listed)
    if "q" not in query:  # search results are ordered by key, with a job of that ID first
        assert ids == listed


@pytest.mark.parametrize(
    ("query", "offered"),
    [
        ({"state": "live"}, ["cancel", "postpone", "run_now"]),
        ({"due": "later"}, ["cancel", "postpone", "run_now"]),
        ({"state": "ready"}, ["cancel", "postpone"]),
        ({"due": "overdue"}, ["cancel", "postpone"]),
        ({"state": "dead"}, ["retry"]),
        ({"topic": TOPIC}, ["cancel", "postpone", "run_now", "retry"]),
    ],
)
def test_only_operations_that_can_succeed_are_offered(admin_client, one_of_each, query, offered):
    make_job("one:far", due=timedelta(days=3))
    page = admin_client.get(ALL, query).content.decode()
    assert re.findall(r'type="radio" name="what" value="(\w+)"', page) == offered
    assert page.count("checked") == (len(offered) == 1), (
        "nothing is chosen for the person unless nothing is left to choose"
    )
    assert ('name="amount"' in page) == ("postpone" in offered)


@pytest.mark.parametrize("state", ["finished", "cancelled"])
def test_ended_jobs_cannot_be_changed(admin_client, one_of_each, state):
    page = admin_client.get(ALL, {"state": state})
    assert "These cannot be changed" in text_of(page)
    admin_client.post(ALL + f"?state={state}", {"what": "cancel", "shown": "1"})
    assert not BulkChange.objects.exists()


def test_a_page_without_matches_has_a_message(admin_client):
    assert "No job matches" in text_of(admin_client.get(ALL, {"state": "live"}))


# Too many


def test_one_job_too_many_is_refused_with_advice(admin_client, one_of_each):
    fill_up(100_001 - len(one_of_each))
    assert Job.objects.count() == 100_001
    page = admin_client.get(ALL, {"topic": TOPIC})
    text = text_of(page)
    assert "More than 100,000 jobs match" in text
    assert "At most 100,000 jobs can be changed at once. Filter by topic, state or due time" in text
    assert 'name="what"' not in page.content.decode()
    admin_client.post(ALL + f"?topic={TOPIC}", {"what": "cancel", "shown": "100001"})
    assert not BulkChange.objects.exists()
    (live, _), (dead, _) = page.context["narrower"]
    assert admin_client.get(ALL + live).context["shown_count"] == "99,998"
    assert admin_client.get(ALL + dead).context["shown_count"] == "1"


def test_the_maximum_number_of_jobs_can_be_changed(admin_client, monkeypatch):
    monkeypatch.setattr(changes, "MAX_JOBS", 5)
    make_jobs(5)
    assert started_change(confirm(admin_client, {"state": "live"}, what="cancel")).total == 5
    make_job("one:more")
    assert "More than 5 jobs match" in text_of(admin_client.get(ALL, {"state": "live"}))


# The started change


def test_confirming_stores_the_ids_and_sends_the_change_to_a_worker(
    admin_client, admin_user, sent, django_capture_on_commit_callbacks
):
    jobs = make_jobs(30)
    make_job("elsewhere", State.DEAD)
    page = admin_client.get(ALL, {"state": "live", "q": "many:"})
    with django_capture_on_commit_callbacks(execute=True):
        response = confirm(admin_client, {}, page, what="cancel", reason="shop closed")
    change = started_change(response)
    assert (change.operation, change.by, change.user_id) == ("cancel", "admin", str(admin_user.pk))
    assert (change.total, sorted(change.ids)) == (30, [job.pk for job in jobs])
    assert (change.reason, change.delay_ms, change.state) == ("shop closed", None, "waiting")
    assert change.selection["filters"] == {"state": "live", "q": "many:"}
    assert change.selection["topics"] == {TOPIC: 30}
    assert sent == [change.pk]
    assert not JobEvent.objects.exists(), "the worker changes them"


@pytest.mark.parametrize(
    ("amount", "unit", "delay_ms"),
    [("90", "seconds", 90_000), ("1.5", "hours", 5_400_000), ("3", "days", 259_200_000), ("0.001", "seconds", 1)],
)
def test_postponing_stores_the_delay(admin_client, amount, unit, delay_ms):
    make_jobs(2)
    change = started_change(confirm(admin_client, {"state": "live"}, what="postpone", amount=amount, unit=unit))
    assert (change.operation, change.delay_ms) == ("postpone", delay_ms)


@pytest.mark.parametrize(
    ("amount", "unit"),
    [("", "hours"), ("0", "hours"), ("-1", "hours"), ("0.0004", "seconds"), ("x", "hours"), ("1e300", "days"),
     ("4000", "days"), ("NaN", "hours"), ("Infinity", "hours"), ("1", "years")],
)  # fmt: skip
def test_an_invalid_delay_shows_the_form_again(admin_client, amount, unit):
    make_jobs(2)
    page = confirm(admin_client, {"state": "live"}, what="postpone", amount=amount, unit=unit)
    assert page.status_code == 200
    assert "Please correct the error" in text_of(page)
    assert {"amount", "unit"} & set(page.context["form"].errors)
    assert not BulkChange.objects.exists()


def test_the_delay_is_ignored_unless_postponing(admin_client):
    make_jobs(2)
    assert started_change(confirm(admin_client, {"state": "live"}, what="run_now", amount="5")).delay_ms is None


@pytest.mark.parametrize("what", ["", "explode", "retry", "None"])
def test_an_operation_that_is_not_offered_shows_the_form_again(admin_client, what):
    make_jobs(2)
    page = confirm(admin_client, {"state": "live"}, what=what)
    assert page.status_code == 200
    assert "what" in page.context["form"].errors
    assert not BulkChange.objects.exists()


def test_a_topic_that_requires_a_reason_gets_one(admin_client):
    make_jobs(2)
    Topic.objects.create(name=OTHER, ask_reason=True)
    make_jobs(1, topic=OTHER)
    for reason in ("", "   "):
        page = confirm(admin_client, {"state": "live"}, what="cancel", reason=reason)
        assert "reason" in page.context["form"].errors
        assert f"Required by {OTHER}." in text_of(page)
    assert not BulkChange.objects.exists()
    assert started_change(confirm(admin_client, {"state": "live"}, what="cancel", reason=" fraud ")).reason == "fraud"
    assert started_change(confirm(admin_client, {"topic": TOPIC}, what="cancel")).reason == "", (
        "that topic does not ask"
    )


@pytest.mark.parametrize("reason", ["x" * 256, "two\nlines", "bell\x07"])
def test_a_reason_must_be_one_printable_line(admin_client, reason):
    make_jobs(1)
    page = confirm(admin_client, {"state": "live"}, what="cancel", reason=reason)
    assert "reason" in page.context["form"].errors


# Between the page and its submission


def test_the_change_applies_to_the_matches_at_submission(admin_client):
    make_jobs(20)
    page = admin_client.get(ALL, {"state": "live"})
    Job.objects.filter(key="many:000003").update(state=State.FINISHED, ended_at=NOW)
    late = make_job("late")
    make_job("later")
    change = started_change(confirm(admin_client, {}, page, what="cancel"))
    assert change.total == 21
    assert late.pk in change.ids
    text = text_of(admin_client.get(f"/admin/delaytasks/bulkchange/{change.pk}/change/"))
    assert "The confirmation page showed 20 jobs. The change applies to the 21 that matched on submission." in text


def test_an_unchanged_number_of_matches_is_not_mentioned(admin_client):
    make_jobs(20)
    change = started_change(confirm(admin_client, {"state": "live"}, what="cancel"))
    text = text_of(admin_client.get(f"/admin/delaytasks/bulkchange/{change.pk}/change/"))
    assert "had counted" not in text


@pytest.mark.parametrize(("shown", "more"), [(1, 1), (10, 1), (20, 3)])
def test_more_matches_than_shown_are_confirmed_again(admin_client, shown, more):
    make_jobs(shown)
    page = admin_client.get(ALL, {"state": "live"})
    make_jobs(more, topic=OTHER)
    again = confirm(admin_client, {}, page, what="cancel", reason="closed")
    assert f"{shown + more} instead of {shown}. Nothing has been done yet" in text_of(again)
    assert not BulkChange.objects.exists()
    assert 'value="closed"' in again.content.decode(), "the input is kept"
    assert started_change(confirm(admin_client, {}, again, what="cancel")).total == shown + more


def test_other_jobs_than_those_on_the_page_are_confirmed_again(admin_client):
    shown = make_job("shown")
    page = admin_client.get(ALL, {"state": "live"})
    Job.objects.filter(pk=shown.pk).update(state=State.FINISHED, ended_at=NOW)
    other = make_job("other")
    again = confirm(admin_client, {}, page, what="cancel")
    assert "Other jobs match now than were shown. Nothing has been done yet" in text_of(again)
    assert not BulkChange.objects.exists()
    assert started_change(confirm(admin_client, {}, again, what="cancel")).ids == [other.pk]


def test_fewer_of_the_jobs_on_the_page_are_not_confirmed_again(admin_client):
    kept, ended = make_job("kept"), make_job("ended")
    page = admin_client.get(ALL, {"state": "live"})
    Job.objects.filter(pk=ended.pk).update(state=State.FINISHED, ended_at=NOW)
    assert started_change(confirm(admin_client, {}, page, what="cancel")).ids == [kept.pk]


def test_a_confirmation_without_remaining_matches_has_a_message(admin_client):
    make_jobs(3)
    page = admin_client.get(ALL, {"state": "live"})
    Job.objects.update(state=State.FINISHED, ended_at=NOW)
    assert "No job matches" in text_of(confirm(admin_client, {}, page, what="cancel"))
    assert not BulkChange.objects.exists()


def test_a_due_filter_is_evaluated_at_submission(admin_client, db_clock):
    make_jobs(90)
    page = admin_client.get(ALL, {"due": "hour"})
    assert page.context["count"] == 60
    db_clock.advance(seconds=5 * 60)
    change = started_change(confirm(admin_client, {}, page, what="cancel"))
    still_to_come = Job.objects.filter(key__range=("many:000005", "many:000064"))
    assert set(change.ids) == set(still_to_come.values_list("pk", flat=True))


def test_a_double_click_starts_one_change(admin_client):
    make_jobs(3)
    page = admin_client.get(ALL, {"state": "live"})
    first = started_change(confirm(admin_client, {}, page, what="postpone", amount="1"))
    second = confirm(admin_client, {}, page, what="postpone", amount="1")
    assert started_change(second) == first
    assert "showing the existing change" in str(next(iter(get_messages(second.wsgi_request))))
    third = started_change(confirm(admin_client, {"state": "live"}, what="postpone", amount="1"))
    assert third != first, "another page starts another change"


# Input in the URL


@pytest.mark.parametrize("query", [{"state": "sleeping"}, {"due": "someday"}])
def test_an_unknown_filter_redirects_to_the_list(admin_client, query):
    make_jobs(1)
    for response in (admin_client.get(ALL, query), admin_client.post(f"{ALL}?{urlencode(query)}", {"what": "cancel"})):
        assert response.status_code == 302
        assert response["Location"].startswith(LIST + "?")
    assert not BulkChange.objects.exists()


@pytest.mark.parametrize("lookup", ["body__icontains", "stat", "id__in"])
def test_an_invalid_filter_value_is_refused_instead_of_ignored(admin_client, lookup):
    make_jobs(1)
    assert admin_client.post(f"{ALL}?state=live&{lookup}=x", {"what": "cancel", "shown": "1"}).status_code == 400
    assert not BulkChange.objects.exists()


@pytest.mark.on_both
@pytest.mark.parametrize("shown", ["", "x", "-5", "9" * 30])
def test_a_forged_confirmation_starts_no_large_change(admin_client, shown):
    make_jobs(11)
    admin_client.post(ALL + "?state=live", {"what": "cancel", "shown": shown})
    assert not BulkChange.objects.exists()


def test_methods_other_than_get_and_post_change_nothing(admin_client):
    make_jobs(1)
    admin_client.put(ALL + "?state=live", "what=cancel&shown=1", content_type="application/x-www-form-urlencoded")
    assert not BulkChange.objects.exists()


def test_stored_values_are_escaped(admin_client):
    hostile = "<script>alert(1)</script>&\"'"
    Topic.objects.create(name=hostile, ask_reason=True)
    make_job(hostile, topic=hostile)
    for query in ({"state": "live"}, {"q": hostile}):
        page = confirm(admin_client, query, what="cancel", amount=hostile, reason="")
        assert page.status_code == 200
        assert "<script>alert" not in page.content.decode()


# Queries


def queries_of(do: Any) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        do()
    return [each["sql"] for each in captured.captured_queries]


@pytest.mark.on_both
def test_page_and_confirmation_need_at_most_two_more_queries_for_three_thousand_jobs_than_for_three(admin_client):
    def page() -> None:
        pages.append(admin_client.get(ALL, {"state": "live", "topic": TOPIC}))

    def click() -> None:
        started_change(confirm(admin_client, {}, pages[-1], what="cancel"))

    pages: list[Any] = []
    make_jobs(3)
    few = len(queries_of(page)), len(queries_of(click))
    make_jobs(3000, prefix="more")
    sent, clicked = queries_of(page), queries_of(click)
    assert 0 <= len(sent) - few[0] <= 2
    assert 0 <= len(clicked) - few[1] <= 2
    assert few[0] <= 21  # on PostgreSQL each scan sets planner options in a savepoint
    assert few[1] <= 34
    jobs = [sql for sql in sent if 'FROM "delaytasks_job"' in sql or "FROM delaytasks_job" in sql]
    assert all("LIMIT" in sql or '"id" IN (' in sql for sql in jobs), "an unbounded COUNT"
    assert not [sql for sql in sent + clicked if "body" in sql]


def test_the_page_shows_the_first_matches_even_if_the_first_page_of_the_list_is_empty(admin_client, monkeypatch):
    monkeypatch.setattr(pagination, "ROUNDS", (2,))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 2)
    monkeypatch.setattr(pagination, "SMALL_TOPIC", 1)
    Topic.objects.create(name=OTHER)
    make_jobs(3, prefix="few", topic=OTHER)
    make_jobs(30)
    page = admin_client.get(ALL, {"topic": OTHER})
    assert page.context["count"] == 3
    assert [job["key"] for job in page.context["first"]] == ["few:000002", "few:000001", "few:000000"]


def test_running_jobs_cannot_be_changed_and_the_page_says_so(admin_client):
    make_job("run:1", State.RESERVED)
    page = admin_client.get(ALL, {"state": "reserved"})
    assert page.context["refused"] == "ended"
    assert "Live jobs that are not running" in text_of(page)


def test_the_admin_log_has_the_user_and_reason_of_a_change(admin_client):
    make_jobs(2)
    change = started_change(confirm(admin_client, {"state": "live"}, what="cancel", reason="bank closed"))
    entry = LogEntry.objects.get(content_type__model="bulkchange")
    assert (entry.user.username, entry.object_id, entry.is_addition()) == ("admin", str(change.pk), True)
    assert entry.change_message == "Begun: bank closed"
    assert "Begun: bank closed" in text_of(admin_client.get(f"/admin/delaytasks/bulkchange/{change.pk}/history/"))
