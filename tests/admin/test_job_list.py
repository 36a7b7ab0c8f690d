"""The list of jobs: columns, filters, search and queries."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from delaytasks.admin import display
from delaytasks.clock import to_ms
from delaytasks.db import pagination
from delaytasks.models import Job, Topic
from delaytasks.states import Outcome, State

from .conftest import NOW, TOPIC, make_event, make_job

pytestmark = pytest.mark.on_both  # searches and filters are SQL

LIST = "/admin/delaytasks/job/"
MS, MINUTE, HOUR = timedelta(milliseconds=1), timedelta(minutes=1), timedelta(hours=1)


def keys(response: Any) -> list[str]:
    """Return the keys in the table, in order."""
    return [job.key for job in response.context["cl"].result_list]


def text_of(response: Any) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", response.content.decode()))


def test_the_list_shows_every_state(admin_client, one_of_each):
    page = admin_client.get(LIST).content.decode()
    for state in State:
        assert f'<span class="dt-state dt-{state.word}">{state.word}</span>' in page


@pytest.mark.parametrize("state", list(State))
def test_each_state_filters_its_own_jobs(admin_client, one_of_each, state):
    assert keys(admin_client.get(LIST, {"state": state.word})) == [f"one:{state.word}"]


def test_live_jobs_are_listed_by_due_time(admin_client, one_of_each):
    found = keys(admin_client.get(LIST, {"state": "live"}))
    assert set(found) == {"one:delayed", "one:ready", "one:reserved"}
    assert found[-1] == "one:delayed"


def test_all_jobs_are_listed_newest_first(admin_client):
    for number in range(3):
        make_job(f"n:{number}", due=number * HOUR)
    assert keys(admin_client.get(LIST)) == ["n:2", "n:1", "n:0"]


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ("overdue", ["past"]),
        ("hour", ["soon"]),
        ("today", ["soon", "evening"]),
        ("day", ["soon", "evening"]),
        ("later", ["far"]),
    ],
)
def test_each_due_filter_finds_live_jobs_of_its_window(admin_client, choice, found):
    make_job("past", State.READY)
    make_job("soon", due=MINUTE)
    make_job("evening", due=23 * HOUR)
    make_job("far", due=50 * HOUR)
    make_job("done", State.FINISHED, due=MINUTE)
    assert keys(admin_client.get(LIST, {"due": choice})) == found


@pytest.mark.parametrize(
    ("zone", "found"),
    [
        ("UTC", ["00:00", "12:00", "23:00"]),
        ("Asia/Tokyo", ["yesterday 16:00", "00:00", "12:00"]),  # local time 9:00
        ("America/New_York", ["yesterday 16:00", "00:00"]),  # local time 19:00 on the previous day
    ],
)
def test_today_is_the_viewers_day(admin_client, settings, zone, found):
    settings.TIME_ZONE = zone
    for key, due in {"yesterday 16:00": -8, "00:00": 0, "12:00": 12, "23:00": 23}.items():
        make_job(key, due=timedelta(hours=due))
    assert keys(admin_client.get(LIST, {"due": "today"})) == found


@pytest.mark.parametrize(
    ("cookie", "found"),
    [
        ("Asia/Tokyo", ["tokyo"]),
        ("UTC", ["utc"]),
        ("Nowhere/City", ["utc"]),
        ("Europe", ["utc"]),  # a directory of zones
        ("../../etc/passwd", ["utc"]),
        ("x" * 9999, ["utc"]),
        ("", ["utc"]),
    ],
)
def test_today_is_the_browsers_day_unless_the_project_activated_a_zone(admin_client, cookie, found):
    make_job("tokyo", due=-8 * HOUR)
    make_job("utc", due=23 * HOUR)
    admin_client.cookies[display.ZONE_COOKIE] = cookie
    assert keys(admin_client.get(LIST, {"due": "today"})) == found


def test_a_zone_activated_by_the_project_overrides_the_browsers(admin_client):
    make_job("tokyo", due=-8 * HOUR)
    make_job("utc", due=23 * HOUR)
    admin_client.cookies[display.ZONE_COOKIE] = "UTC"
    with timezone.override("Asia/Tokyo"):
        page = admin_client.get(LIST, {"due": "today"})
    assert keys(page) == ["tokyo"]
    assert "Times are in Asia/Tokyo." in page.content.decode()
    assert "data-cookie" not in page.content.decode(), "the script does not convert the times"


def test_a_day_may_have_23_hours(admin_client, settings, db_clock):
    settings.TIME_ZONE = "Europe/Berlin"
    db_clock.set(1_901_156_400_000)  # 2030-03-31 00:00 there; the clocks go forward that night
    make_job("last minute", due=datetime(2030, 3, 31, 21, 59, tzinfo=UTC) - NOW)
    make_job("tomorrow", due=datetime(2030, 3, 31, 22, 0, tzinfo=UTC) - NOW)
    assert keys(admin_client.get(LIST, {"due": "today"})) == ["last minute"]


def test_a_day_with_two_midnights_begins_at_the_first(admin_client, settings, db_clock):
    settings.TIME_ZONE = "Atlantic/Azores"
    db_clock.set(1_919_295_000_000)  # 2030-10-27 00:30 there for the second time; the clocks went back at 01:00
    make_job("yesterday", due=datetime(2030, 10, 26, 23, 59, tzinfo=UTC) - NOW)
    make_job("first hour", due=datetime(2030, 10, 27, 0, 30, tzinfo=UTC) - NOW)
    make_job("last minute", due=datetime(2030, 10, 28, 0, 59, tzinfo=UTC) - NOW)
    make_job("tomorrow", due=datetime(2030, 10, 28, 1, 0, tzinfo=UTC) - NOW)
    assert keys(admin_client.get(LIST, {"due": "today"})) == ["first hour", "last minute"]


def test_ended_jobs_are_not_due(admin_client, one_of_each):
    assert keys(admin_client.get(LIST, {"state": "finished", "due": "hour"})) == []
    sent = queries_of(admin_client, state="finished", due="later")
    assert not [sql for sql in sent if "delaytasks_job" in sql], "no query if nothing can match"


def test_the_topic_filter_offers_topics_with_a_row(admin_client):
    Topic.objects.create(name="test.other")
    make_job("here")
    make_job("there", topic="test.other")
    page = admin_client.get(LIST, {"topic": "test.other"})
    assert keys(page) == ["there"]
    assert f"?topic={TOPIC}" in page.content.decode()


@pytest.mark.parametrize("query", [{"state": "sleeping"}, {"state": ""}, {"due": "someday"}, {"due": ""}])
def test_an_invalid_url_redirects_to_the_list(admin_client, query):
    assert admin_client.get(LIST, query).status_code == 302


@pytest.mark.parametrize("lookup", ["body__icontains", "error__contains", "key__regex", "id__in", "events__error"])
def test_no_other_lookup_is_allowed_in_the_url(admin_client, lookup):
    assert admin_client.get(LIST, {lookup: "x"}).status_code == 400


# Search


def test_a_key_is_found_by_its_prefix(admin_client):
    for key in ("order:1042", "order:10421", "order:2", "reorder:1042"):
        make_job(key)
    assert set(keys(admin_client.get(LIST, {"q": "order:1042"}))) == {"order:1042", "order:10421"}


def test_a_key_of_an_ended_job_is_found(admin_client, one_of_each):
    assert len(keys(admin_client.get(LIST, {"q": "one:"}))) == len(State)


def test_a_number_finds_the_job_with_that_id_and_keys_with_that_prefix(admin_client):
    job = make_job("order:1")
    other = make_job(f"{job.pk}-x")
    assert keys(admin_client.get(LIST, {"q": str(job.pk)})) == ["order:1", other.key]
    assert keys(admin_client.get(LIST, {"q": str(job.pk), "state": "dead"})) == []


@pytest.mark.parametrize(
    "query", ["99999999999999999999", str(2**63), "-1", "%", "_", "\\", "'", "٣", "  ", "x" * 5000]
)
def test_any_text_can_be_searched_for(admin_client, query):
    make_job("order:1")
    page = admin_client.get(LIST, {"q": query})
    assert page.status_code == 200
    assert keys(page) == (["order:1"] if not query.strip() else [])


def test_a_nul_character_causes_no_error(admin_client, settings):
    settings.MIDDLEWARE = [
        name for name in settings.MIDDLEWARE if "nul" not in name
    ]  # without the project's middleware
    assert admin_client.get(LIST, {"q": "a\0b"}).status_code == 200


def test_search_and_filters_work_together(admin_client, one_of_each):
    assert keys(admin_client.get(LIST, {"q": "one:", "state": "dead", "topic": TOPIC})) == ["one:dead"]


def test_a_search_finds_jobs_of_a_topic_without_a_row(admin_client):
    Topic.objects.all().delete()
    make_job("order:1")
    assert keys(admin_client.get(LIST, {"q": "order:"})) == ["order:1"]


# Columns


def test_due_times_are_shown_absolute_and_relative(admin_client, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    make_job("soon", due=timedelta(minutes=12, seconds=30))
    make_job("past", due=timedelta(seconds=-4))
    page = text_of(admin_client.get(LIST))
    assert "2030-01-01 09:12:30" in page
    assert "in 12 min" in page
    assert "4 s ago" in page


def test_ended_jobs_have_no_countdown(admin_client):
    make_job("done", State.FINISHED, due=-HOUR)
    assert "ago" not in text_of(admin_client.get(LIST))


def late(page: Any) -> list[str]:
    cells = re.findall(r'<td class="field-late">(.*?)</td>', page.content.decode())
    return [unescape(re.sub(r"<[^>]+>", "", cell)) for cell in cells]


def test_lateness_is_how_late_the_last_attempt_began_or_how_long_a_job_is_overdue(admin_client):
    began = {"attempt": 1, "reserved_at": NOW + 12 * MS}
    make_job("finished", State.FINISHED, due=timedelta(), **began)
    make_job("dead", State.DEAD, due=timedelta(), **began)
    make_job("running", State.RESERVED, due=HOUR, reserved_at=NOW - HOUR + 3 * MS)
    make_job("ready", State.READY, due=90 * MINUTE)
    make_job("ready again", State.READY, due=MINUTE, **began)
    make_job("waiting")
    make_job("called off", State.CANCELLED, **began)
    make_job("loaded from elsewhere", State.FINISHED, **began)
    page = admin_client.get(LIST)
    assert dict(zip(keys(page), late(page), strict=True)) == {
        "finished": "12 ms",
        "dead": "12 ms",
        "running": "3 ms",
        "ready": "1 h 30 min",
        "ready again": "1 min",
        "waiting": "–",
        "called off": "–",
        "loaded from elsewhere": "–",
    }
    assert 'title="overdue for 5,400,000 ms"' in page.content.decode()
    assert 'title="the last attempt began 12 ms late"' in page.content.decode()


def test_a_job_waiting_for_a_retry_shows_the_lateness_of_its_last_attempt(admin_client):
    again = make_job("again", attempt=2, failures=2)
    due_ms = to_ms(again.due_at)
    for attempt, late_ms in ((2, 7), (1, 5)):
        make_event(
            again, Outcome.FAILED, attempt=attempt, due_ms=due_ms - 9000, reserved_ms=due_ms - 9000 + late_ms,
            done_ms=due_ms - 100,
        )  # fmt: skip
    make_event(again, Outcome.RESCHEDULED, attempt=2)
    page = admin_client.get(LIST)
    assert late(page) == ["7 ms"]
    assert "2 failed" in text_of(page)


def test_the_list_does_not_read_thousands_of_events(admin_client):
    make_job("polling", attempt=5000)
    assert not [sql for sql in queries_of(admin_client) if "jobevent" in sql]


def test_the_time_zone_is_shown(admin_client, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    make_job("order:1", due=timedelta())
    page = admin_client.get(LIST).content.decode()
    assert 'title="2030-01-01 09:00:00 Asia/Tokyo"' in page
    assert "Times are in Asia/Tokyo." in page


def test_the_last_error_is_shown_in_one_line(admin_client):
    make_job("bad", State.DEAD, error="Traceback (most recent call last):\n  File x\nValueError: no such bank\n\n")
    page = admin_client.get(LIST).content.decode()
    assert "ValueError: no such bank" in page
    assert "Traceback" not in page


def test_a_job_without_an_error_and_lateness_has_a_dash_in_both_columns(admin_client):
    make_job("good")
    page = admin_client.get(LIST).content.decode()
    assert re.findall(r'<td class="field-(?:late|last_error)">(.*?)</td>', page) == ["–", "–"]


HOSTILE = "<script>alert(1)</script>&\"'"


def test_stored_values_are_escaped(admin_client):
    Topic.objects.create(name=HOSTILE)
    make_job(HOSTILE, State.DEAD, topic=HOSTILE, error=HOSTILE)
    for query in ({}, {"q": HOSTILE}, {"topic": HOSTILE}):
        page = admin_client.get(LIST, query)
        assert keys(page) == [HOSTILE]
        assert "<script>alert" not in page.content.decode()


# Queries


def queries_of(client: Any, **query: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        page = client.get(LIST, query)
    assert page.status_code == 200
    return [each["sql"] for each in captured.captured_queries]


EVERY_VIEW = [
    {},
    {"q": "order:1"},
    {"q": "17"},
    {"q": "order:1", "state": "dead", "topic": TOPIC},
    {"topic": TOPIC},
    {"topic": TOPIC, "o": "3"},
    {"topic": TOPIC, "state": "live"},
    {"topic": TOPIC, "state": "finished"},
    {"topic": TOPIC, "state": "dead"},
    {"p": "2"},
    {"all": ""},
    {"_facets": "True"},
    *({"state": state.word} for state in State),
    *({"due": due} for due in ("overdue", "hour", "today", "day", "later")),
]


@pytest.mark.parametrize("query", EVERY_VIEW, ids=str)
def test_a_page_needs_few_queries_and_no_count(admin_client, query):
    for number in range(3):
        make_job(f"order:{number}", State.DEAD, error="x")
    sent = queries_of(admin_client, **query)
    of_jobs = [sql for sql in sent if "delaytasks_job" in sql]
    assert len(sent) <= 10, "session, user, topics, time, planner options, and for the jobs:"
    assert len(of_jobs) <= 3, "size of the topic, ids, rows"
    is_small = f"LIMIT {pagination.SMALL_TOPIC}) AS counted"
    assert not [sql for sql in of_jobs if "COUNT(" in sql.upper() and not sql.endswith(is_small)]
    assert not [sql for sql in of_jobs if "DISTINCT" in sql.upper()]
    assert all("LIMIT" in sql or '"id" IN (' in sql for sql in of_jobs), "an unbounded query"


def test_more_jobs_need_no_more_queries(admin_client):
    make_job("order:first")
    before = len(queries_of(admin_client))
    for number in range(30):
        make_job(f"order:{number}", State.READY)
    assert len(queries_of(admin_client)) == before


@pytest.mark.parametrize(
    "query", [{"state": "cancelled"}, {"state": "reserved"}, {"q": "many:", "state": "dead"}], ids=str
)
def test_a_search_without_matches_needs_a_bounded_number_of_queries(admin_client, monkeypatch, query):
    monkeypatch.setattr(pagination, "ROUNDS", (2, 4))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 8)
    monkeypatch.setattr(pagination, "PAGE_SECONDS", 60)
    for number in range(30):
        make_job(f"many:{number:02}", State.READY)
    sent = queries_of(admin_client, **query)
    rounds = 3 if query == {"state": "cancelled"} else 2  # one more for the search by ID
    assert len([sql for sql in sent if "delaytasks_job" in sql]) == rounds, "one statement per round"


def test_the_list_does_not_read_bodies(admin_client):
    make_job("order:1", body={"big": "x" * 1000})
    assert not [sql for sql in queries_of(admin_client) if "body" in sql]


NO_SORT = ["1", "2", "5", "-5", "6", "7", "1.2", "nonsense", "99", "-", "9" * 30, "٣"]


@pytest.mark.parametrize("order", [*NO_SORT, "3", "-3", "4"])
def test_a_sort_without_an_index_is_ignored(admin_client, order):
    for key in ("b", "c", "a"):
        make_job(key)
    assert keys(admin_client.get(LIST, {"o": order})) == ["a", "c", "b"], "newest first"


@pytest.mark.parametrize(("order", "found"), [("4", "abc"), ("-4", "cba"), ("3", "abc"), ("nonsense", "abc")])
def test_live_jobs_sort_by_due_time_both_ways(admin_client, order, found):
    for key, hours in {"b": 2, "c": 3, "a": 1}.items():
        make_job(key, due=hours * HOUR)
    assert keys(admin_client.get(LIST, {"state": "live", "o": order})) == list(found)


@pytest.mark.parametrize(("order", "found"), [("3", "abc"), ("-3", "cba")])
def test_a_topics_jobs_sort_by_key_both_ways(admin_client, order, found):
    for key in ("b", "c", "a"):
        make_job(key)
    assert keys(admin_client.get(LIST, {"topic": TOPIC, "o": order})) == list(found)


def test_keys_sort_byte_by_byte_on_every_database(admin_client):
    names = ["a", "B", "ä", "b", "A", "_", "a b", "ab", "\U0001f600", "\uffee"]
    for key in names:
        make_job(key)
    assert keys(admin_client.get(LIST, {"topic": TOPIC, "o": "3"})) == sorted(names, key=str.encode)


def test_only_supported_sorts_are_offered(admin_client, one_of_each):
    def offered(**query: str) -> set[str]:
        return set(re.findall(r"[?&;]o=-?(\d)", admin_client.get(LIST, query).content.decode()))

    assert offered() == set()
    assert offered(due="overdue") == {"4"}
    assert offered(topic=TOPIC) == {"3"}
    assert offered(topic=TOPIC, state="live") == {"3", "4"}
    assert offered(q="one:", state="live") == {"3"}


def test_sorting_works_without_the_checkbox_column(staff):
    client = staff("delaytasks.view_job")  # without actions there is no checkbox column, so the column numbers shift
    for key in ("b", "c", "a"):
        make_job(key)
    page = client.get(LIST, {"topic": TOPIC})
    (order,) = set(re.findall(r"[?&;]o=(\d)", page.content.decode()))
    assert keys(client.get(LIST, {"topic": TOPIC, "o": order})) == ["a", "b", "c"]


# Permissions


def test_the_list_requires_the_view_permission(staff):
    assert staff().get(LIST).status_code == 403
    assert staff("delaytasks.view_job").get(LIST).status_code == 200


def test_jobs_cannot_be_deleted_or_edited(admin_client):
    job = make_job("order:1")
    assert admin_client.post(reverse("admin:delaytasks_job_delete", args=[job.pk])).status_code == 403
    change = admin_client.post(reverse("admin:delaytasks_job_change", args=[job.pk]), {"key": "order:2"})
    assert change.status_code == 403
    assert Job.objects.get().key == "order:1"
    assert "delete_selected" not in admin_client.get(LIST).content.decode()


def test_autocomplete_counts_a_limited_number_of_jobs(admin_client):
    for n in range(5):
        make_job(f"order:{n}")
    where = {"app_label": "delaytasks", "model_name": "jobevent", "field_name": "job"}
    with CaptureQueriesContext(connection) as queries:
        found = admin_client.get("/admin/autocomplete/", where | {"term": "order:"}).json()
    assert [each["text"] for each in found["results"]] == [f"{TOPIC} order:{n}" for n in range(5)]
    statements = [query["sql"] for query in queries if "delaytasks_job" in query["sql"]]
    assert all(" LIMIT " in sql for sql in statements)
    assert not any("COUNT(" in sql for sql in statements)
