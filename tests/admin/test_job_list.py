"""The list of jobs: what it shows, filters and finds, and what it asks the database for that."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from delaytasks.admin import shown, walks
from delaytasks.clock import to_ms
from delaytasks.models import Job, Topic
from delaytasks.states import Outcome, State

from .conftest import NOW, TOPIC, make_event, make_job

LIST = "/admin/delaytasks/job/"
MS, MINUTE, HOUR = timedelta(milliseconds=1), timedelta(minutes=1), timedelta(hours=1)


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
        ("Asia/Tokyo", ["yesterday 16:00", "00:00", "12:00"]),  # there it is nine in the morning
        ("America/New_York", ["yesterday 16:00", "00:00"]),  # and there seven in the evening of the day before
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
def test_today_is_the_browsers_day_where_the_project_chose_no_zone(admin_client, cookie, found):
    make_job("tokyo", due=-8 * HOUR)
    make_job("utc", due=23 * HOUR)
    admin_client.cookies[shown.ZONE_COOKIE] = cookie
    assert keys(admin_client.get(LIST, {"due": "today"})) == found


def test_a_zone_that_the_project_chose_goes_before_the_browsers(admin_client):
    make_job("tokyo", due=-8 * HOUR)
    make_job("utc", due=23 * HOUR)
    admin_client.cookies[shown.ZONE_COOKIE] = "UTC"
    with timezone.override("Asia/Tokyo"):
        page = admin_client.get(LIST, {"due": "today"})
    assert keys(page) == ["tokyo"]
    assert "Times are in Asia/Tokyo." in page.content.decode()
    assert "data-cookie" not in page.content.decode(), "and the script leaves its times alone"


def test_a_day_may_have_23_hours(admin_client, settings, db_clock):
    settings.TIME_ZONE = "Europe/Berlin"
    db_clock.set(1_901_156_400_000)  # 2030-03-31 00:00 there; the clocks go forward that night
    make_job("last minute", due=datetime(2030, 3, 31, 21, 59, tzinfo=UTC) - NOW)
    make_job("tomorrow", due=datetime(2030, 3, 31, 22, 0, tzinfo=UTC) - NOW)
    assert keys(admin_client.get(LIST, {"due": "today"})) == ["last minute"]


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


@pytest.mark.parametrize("query", [{"state": "sleeping"}, {"state": ""}, {"due": "someday"}, {"due": ""}])
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
    assert keys(admin_client.get(LIST, {"q": str(job.pk)})) == ["order:1", other.key]
    assert keys(admin_client.get(LIST, {"q": str(job.pk), "state": "dead"})) == []


@pytest.mark.parametrize(
    "query", ["99999999999999999999", str(2**63), "-1", "%", "_", "\\", "'", "٣", "  ", "x" * 5000]
)
def test_any_text_may_be_searched_for(admin_client, query):
    make_job("order:1")
    page = admin_client.get(LIST, {"q": query})
    assert page.status_code == 200
    assert keys(page) == (["order:1"] if not query.strip() else [])


def test_a_null_character_is_no_reason_to_fall_over(admin_client, settings):
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "nul" not in name]  # the project's own guard
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


def test_a_job_that_waits_for_another_attempt_tells_how_late_the_last_one_began(admin_client):
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


def test_thousands_of_events_are_not_read_for_a_list(admin_client):
    make_job("polling", attempt=5000)
    assert not [sql for sql in queries_of(admin_client) if "jobevent" in sql]


def test_the_zone_of_the_times_is_named(admin_client, settings):
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
def test_a_page_costs_a_handful_of_queries_and_counts_nothing(admin_client, query):
    for number in range(3):
        make_job(f"order:{number}", State.DEAD, error="x")
    sent = queries_of(admin_client, **query)
    of_jobs = [sql for sql in sent if "delaytasks_job" in sql]
    assert len(sent) <= 10, "session, user, topics, the time, PostgreSQL's way of planning, and for the jobs:"
    assert len(of_jobs) <= 4, "is the topic small, which jobs, were there more, their rows"
    assert not [sql for sql in of_jobs if "COUNT(" in sql.upper() or "DISTINCT" in sql.upper()]
    assert all("LIMIT" in sql or '"id" IN (' in sql for sql in of_jobs), "each reads a bounded number of rows"


def test_more_jobs_cost_no_more_queries(admin_client):
    make_job("order:first")
    before = len(queries_of(admin_client))
    for number in range(30):
        make_job(f"order:{number}", State.READY)
    assert len(queries_of(admin_client)) == before


@pytest.mark.parametrize(
    "query", [{"state": "cancelled"}, {"state": "reserved"}, {"q": "many:", "state": "dead"}], ids=str
)
def test_however_long_a_search_is_in_vain_it_costs_a_bounded_number_of_queries(admin_client, monkeypatch, query):
    monkeypatch.setattr(walks, "ROUNDS", (2, 4))
    monkeypatch.setattr(walks, "FAR", 8)
    monkeypatch.setattr(walks, "PAGE_SECONDS", 60)
    for number in range(30):
        make_job(f"many:{number:02}", State.READY)
    sent = queries_of(admin_client, **query)
    rounds = 3 if query == {"state": "cancelled"} else 2  # by number one more
    assert len([sql for sql in sent if "delaytasks_job" in sql]) == 2 * rounds, "each time: which jobs, were there more"


def test_bodies_are_not_read_for_a_list(admin_client):
    make_job("order:1", body={"big": "x" * 1000})
    assert not [sql for sql in queries_of(admin_client) if "body" in sql]


NO_SORT = ["1", "2", "5", "-5", "6", "7", "1.2", "nonsense", "99", "-", "9" * 30, "٣"]


@pytest.mark.parametrize("order", [*NO_SORT, "3", "-3", "4"])
def test_no_sort_is_taken_that_no_index_serves(admin_client, order):
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


def test_only_a_sort_that_is_taken_is_offered(admin_client, one_of_each):
    def offered(**query: str) -> set[str]:
        return set(re.findall(r"[?&;]o=-?(\d)", admin_client.get(LIST, query).content.decode()))

    assert offered() == set()
    assert offered(due="overdue") == {"4"}
    assert offered(topic=TOPIC) == {"3"}
    assert offered(topic=TOPIC, state="live") == {"3", "4"}
    assert offered(q="one:", state="live") == {"3"}


def test_a_sort_is_meant_by_its_column_even_where_nothing_can_be_selected(staff):
    client = staff("delaytasks.view_job")  # no actions, so no column of boxes to tick: the others move up
    for key in ("b", "c", "a"):
        make_job(key)
    page = client.get(LIST, {"topic": TOPIC})
    (order,) = set(re.findall(r"[?&;]o=(\d)", page.content.decode()))
    assert keys(client.get(LIST, {"topic": TOPIC, "o": order})) == ["a", "b", "c"]


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


def test_a_form_that_finds_a_job_while_one_types_counts_no_more_than_people_look_at(admin_client):
    for n in range(5):
        make_job(f"order:{n}")
    where = {"app_label": "delaytasks", "model_name": "jobevent", "field_name": "job"}
    with CaptureQueriesContext(connection) as queries:
        found = admin_client.get("/admin/autocomplete/", where | {"term": "order:"}).json()
    assert [each["text"] for each in found["results"]] == [f"{TOPIC} order:{n}" for n in range(5)]
    asked = [query["sql"] for query in queries if "delaytasks_job" in query["sql"]]
    assert all(" LIMIT " in sql for sql in asked)
    assert not any("COUNT(" in sql for sql in asked)
