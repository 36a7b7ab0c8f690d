"""The list of jobs: what it shows, filters and finds, and what it asks the database for that."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from delaytasks.admin.changelist import LAST_PAGE
from delaytasks.models import Job, Topic
from delaytasks.states import State

from .conftest import NOW, TOPIC, make_job

LIST = "/admin/delaytasks/job/"
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def keys(response: Any) -> list[str]:
    """The keys in the table, in its order."""
    return [job.key for job in response.context["cl"].result_list]


def text_of(response: Any) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", response.content.decode()))


def test_the_list_shows_every_state_as_people_see_it(admin_client, one_of_each):
    page = admin_client.get(LIST).content.decode()
    for state in State:
        assert f'<span class="dt-state dt-{state.word}">{state.word}</span>' in page


@pytest.mark.parametrize("state", list(State))
def test_each_state_filters_its_own_jobs(admin_client, one_of_each, state):
    assert keys(admin_client.get(LIST, {"state": state.word})) == [f"one:{state.word}"]


def test_live_jobs_can_be_had_together_by_due_time(admin_client, one_of_each):
    found = keys(admin_client.get(LIST, {"state": "live"}))
    assert set(found) == {"one:delayed", "one:ready", "one:reserved"}
    assert found[-1] == "one:delayed"


def test_all_jobs_come_newest_first(admin_client):
    for number in range(3):
        make_job(f"n:{number}", due=number * HOUR)
    assert keys(admin_client.get(LIST)) == ["n:2", "n:1", "n:0"]


@pytest.mark.parametrize(
    ("choice", "found"),
    [("overdue", ["past"]), ("hour", ["soon"]), ("day", ["soon", "today"]), ("later", ["far"])],
)
def test_each_due_filter_finds_live_jobs_of_its_window(admin_client, choice, found):
    make_job("past", State.READY)
    make_job("soon", due=MINUTE)
    make_job("today", due=5 * HOUR)
    make_job("far", due=50 * HOUR)
    make_job("done", State.FINISHED, due=MINUTE)
    assert keys(admin_client.get(LIST, {"due": choice})) == found


def test_what_has_ended_is_not_due(admin_client, one_of_each):
    assert keys(admin_client.get(LIST, {"state": "finished", "due": "hour"})) == []
    sent = queries_of(admin_client, state="finished", due="later")
    assert not [sql for sql in sent if "delaytasks_job" in sql], "a search that cannot find anything is not made"


def test_a_topic_filters_its_jobs_and_is_offered_from_its_row(admin_client):
    Topic.objects.create(name="test.other")
    make_job("here")
    make_job("there", topic="test.other")
    page = admin_client.get(LIST, {"topic": "test.other"})
    assert keys(page) == ["there"]
    assert f"?topic={TOPIC}" in page.content.decode()


@pytest.mark.parametrize("query", [{"state": "sleeping"}, {"due": "someday"}, {"p": "0"}, {"p": str(LAST_PAGE + 1)}])
def test_what_the_address_cannot_mean_leads_back_to_the_list(admin_client, query):
    assert admin_client.get(LIST, query).status_code == 302


@pytest.mark.parametrize("lookup", ["body__icontains", "error__contains", "key__regex", "id__in", "events__error"])
def test_no_other_lookup_can_be_typed_into_the_address(admin_client, lookup):
    assert admin_client.get(LIST, {lookup: "x"}).status_code == 400


# Search


def test_a_key_is_found_by_its_beginning(admin_client):
    for key in ("order:1042", "order:10421", "order:2", "reorder:1042"):
        make_job(key)
    assert set(keys(admin_client.get(LIST, {"q": "order:1042"}))) == {"order:1042", "order:10421"}


def test_a_key_is_found_among_the_ended_too(admin_client, one_of_each):
    assert len(keys(admin_client.get(LIST, {"q": "one:"}))) == len(State)


def test_a_number_finds_the_job_of_that_number_and_keys_that_begin_so(admin_client):
    job = make_job("order:1")
    other = make_job(f"{job.pk}-x")
    assert keys(admin_client.get(LIST, {"q": str(job.pk)})) == [other.key, "order:1"]


@pytest.mark.parametrize(
    "query", ["99999999999999999999", str(2**63), "-1", "%", "_", "\\", "'", "٣", "  ", "x" * 5000]
)
def test_any_text_may_be_searched_for(admin_client, query):
    make_job("order:1")
    page = admin_client.get(LIST, {"q": query})
    assert page.status_code == 200
    assert keys(page) == (["order:1"] if not query.strip() else [])


def test_a_null_character_is_no_reason_to_fall_over(admin_client):
    assert admin_client.get(LIST, {"q": "a\0b"}).status_code == 200


def test_search_and_filters_work_together(admin_client, one_of_each):
    assert keys(admin_client.get(LIST, {"q": "one:", "state": "dead", "topic": TOPIC})) == ["one:dead"]


def test_a_search_finds_jobs_of_a_topic_without_a_row(admin_client):
    Topic.objects.all().delete()
    make_job("order:1")
    assert keys(admin_client.get(LIST, {"q": "order:"})) == ["order:1"]


# What is in the cells


def test_due_is_told_absolutely_and_relatively(admin_client, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    make_job("soon", due=timedelta(minutes=12, seconds=30))
    make_job("past", due=timedelta(seconds=-4))
    page = text_of(admin_client.get(LIST))
    assert "2030-01-01 09:12:30" in page
    assert "in 12 min" in page
    assert "4 s ago" in page


def test_what_has_ended_is_not_counted_down(admin_client):
    make_job("done", State.FINISHED, due=-HOUR)
    assert "ago" not in text_of(admin_client.get(LIST))


def test_the_last_error_is_shown_in_one_line(admin_client):
    make_job("bad", State.DEAD, error="Traceback (most recent call last):\n  File x\nValueError: no such bank\n\n")
    page = admin_client.get(LIST).content.decode()
    assert "ValueError: no such bank" in page
    assert "Traceback" not in page


HOSTILE = "<script>alert(1)</script>&\"'"


def test_nothing_that_is_stored_becomes_html(admin_client):
    Topic.objects.create(name=HOSTILE)
    make_job(HOSTILE, State.DEAD, topic=HOSTILE, error=HOSTILE)
    for query in ({}, {"q": HOSTILE}, {"topic": HOSTILE}):
        page = admin_client.get(LIST, query)
        assert keys(page) == [HOSTILE]
        assert "<script>alert" not in page.content.decode()


# What it costs


def queries_of(client: Any, **query: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        page = client.get(LIST, query)
    assert page.status_code == 200
    return [each["sql"] for each in captured.captured_queries]


EVERY_VIEW = [
    {},
    {"q": "order:1"},
    {"q": "17"},
    {"topic": TOPIC},
    {"topic": TOPIC, "state": "live"},
    {"p": "2"},
    {"all": ""},
    {"_facets": "True"},
    *({"state": state.word} for state in State),
    *({"due": due} for due in ("overdue", "hour", "day", "later")),
]


@pytest.mark.parametrize("query", EVERY_VIEW, ids=str)
def test_a_page_costs_a_handful_of_queries_and_counts_nothing(admin_client, query):
    for number in range(3):
        make_job(f"order:{number}", State.DEAD, error="x")
    sent = queries_of(admin_client, **query)
    of_jobs = [sql for sql in sent if "delaytasks_job" in sql]
    assert len(sent) <= 6, "session, user, the time, topics (once for the filter, once for the search), jobs"
    assert len(of_jobs) == 1
    assert "COUNT(" not in of_jobs[0].upper()
    assert "DISTINCT" not in of_jobs[0].upper()
    assert "LIMIT 101" in of_jobs[0]


def test_more_jobs_cost_no_more_queries(admin_client):
    make_job("order:first")
    before = len(queries_of(admin_client))
    for number in range(30):
        make_job(f"order:{number}", State.READY)
    assert len(queries_of(admin_client)) == before


def test_bodies_are_not_read_for_a_list(admin_client):
    make_job("order:1", body={"big": "x" * 1000})
    (sql,) = [sql for sql in queries_of(admin_client) if "delaytasks_job" in sql]
    assert '"body"' not in sql


@pytest.mark.parametrize("order", ["1", "2", "3", "-3", "4", "5", "6", "1.2", "nonsense", "99", "-"])
def test_no_sort_is_taken_that_no_index_serves(admin_client, order):
    make_job("order:1")
    (sql,) = [sql for sql in queries_of(admin_client, o=order) if "delaytasks_job" in sql]
    assert sql.endswith('ORDER BY "delaytasks_job"."id" DESC LIMIT 101')


@pytest.mark.parametrize(("order", "way"), [("4", "ASC"), ("-4", "DESC"), ("2", "ASC"), ("nonsense", "ASC")])
def test_live_jobs_sort_by_due_time_both_ways(admin_client, order, way):
    make_job("order:1")
    (sql,) = [sql for sql in queries_of(admin_client, state="live", o=order) if "delaytasks_job" in sql]
    assert sql.endswith(f'ORDER BY "delaytasks_job"."due_at" {way}, "delaytasks_job"."id" {way} LIMIT 101')


def test_only_a_sort_that_is_taken_is_offered(admin_client, one_of_each):
    assert "o=" not in admin_client.get(LIST).content.decode()
    assert "o=4" in admin_client.get(LIST, {"due": "overdue"}).content.decode()


# Pages


@pytest.fixture
def many() -> None:
    """250 jobs: two full pages and a half."""
    rows = [
        Job(topic=TOPIC, key=f"many:{n:03}", state=State.DELAYED, due_at=NOW + n * MINUTE, ttr_ms=1, created_at=NOW)
        for n in range(250)
    ]
    Job.objects.bulk_create(rows)


def test_pages_follow_each_other_without_a_count(admin_client, many):
    seen: list[str] = []
    address = LIST + "?state=delayed"
    for _ in range(3):
        page = admin_client.get(address)
        seen += keys(page)
        following = re.search(r'href="(\?[^"]+)" rel="next"', page.content.decode())
        address = LIST + unescape(following[1]) if following else ""
    assert seen == [f"many:{n:03}" for n in range(1, 250)]
    assert not address


def test_the_first_page_says_that_there_are_more(admin_client, many):
    page = text_of(admin_client.get(LIST))
    assert "Jobs 1 to 100" in page
    assert "there are more" in page
    assert "250" not in page


def test_everything_that_matches_cannot_be_selected_at_once(admin_client, many):
    page = admin_client.get(LIST).content.decode()
    assert "0 of 100 selected" in page
    assert "across all pages" not in page


def test_the_last_page_that_can_be_reached_says_so(admin_client, many, monkeypatch):
    monkeypatch.setattr("delaytasks.admin.changelist.LAST_PAGE", 2)
    page = admin_client.get(LIST, {"p": "2"})
    assert "The list ends here" in text_of(page)
    assert 'rel="next"' not in page.content.decode()


def test_an_empty_list_says_so(admin_client):
    page = text_of(admin_client.get(LIST, {"state": "dead"}))
    assert "No jobs." in page


# Who may


def test_the_list_is_for_those_who_may_view_jobs(staff):
    assert staff().get(LIST).status_code == 403
    assert staff("delaytasks.view_job").get(LIST).status_code == 200


def test_jobs_are_neither_added_nor_deleted_nor_edited_here(admin_client):
    job = make_job("order:1")
    assert admin_client.get(reverse("admin:delaytasks_job_add")).status_code == 403
    assert admin_client.post(reverse("admin:delaytasks_job_delete", args=[job.pk])).status_code == 403
    change = admin_client.post(reverse("admin:delaytasks_job_change", args=[job.pk]), {"key": "order:2"})
    assert change.status_code == 403
    assert Job.objects.get().key == "order:1"
    assert "delete_selected" not in admin_client.get(LIST).content.decode()
