"""Pages of jobs: every filter, each job once, and no hidden topics."""

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from delaytasks.api import job_list
from delaytasks.db import pagination
from delaytasks.db.pagination import Cursor
from delaytasks.db.scans import KEY
from delaytasks.jobs import control, schedule
from delaytasks.models import Job
from tests.api.rest_client import Rest, at, fields

pytestmark = pytest.mark.on_both  # filters and pages are SQL

STATES = ("reserved", "finished", "dead", "cancelled", "delayed", "ready")  # in the order in which they can be made
VISIBLE = ("mail.send", "mail.print")


def all_pages(rest: Rest, between: Callable[[], object] = lambda: None, **query: Any) -> list[dict[str, Any]]:
    """Return the jobs of all pages; between() is called between two pages."""
    page = rest.get("jobs/", **query)
    found = list(page["results"])
    for _ in range(200):
        if page["next"] is None:
            return found
        between()
        page = rest.get(page["next"])
        found += page["results"]
    raise AssertionError("the pages have no end")


@pytest.fixture
def many_jobs(rest: Rest) -> Rest:
    """Three jobs in each state and topic, with keys such as "dead:0"; and one in a hidden topic."""
    schedule.schedule("sms.send", key="hidden", delay=60)
    for topic in VISIBLE:
        for state in STATES:
            for number in range(3):
                _create_job(rest, topic, state, number)
    return rest


def _create_job(rest: Rest, topic: str, state: str, number: int) -> None:
    waits = state in ("delayed", "cancelled")
    job_id = rest.make(f"{state}:{number}", topic=topic, delay_seconds=60 + number if waits else 0)["id"]
    if state in ("reserved", "finished", "dead"):
        assert [job["id"] for job in rest.take(topic)] == [job_id]
    last = {"finished": "finish", "dead": "bury", "cancelled": "cancel"}.get(state)
    if last:
        rest.post(f"jobs/{job_id}/{last}/", None if last == "cancel" else {"attempt": 1})


def names(jobs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(job["topic"], job["key"]) for job in jobs]


def expected(topics: Any = VISIBLE, states: Any = STATES) -> list[tuple[str, str]]:
    return sorted((topic, f"{state}:{number}") for topic in topics for state in states for number in range(3))


# -- everything, once ---------------------------------------------------------------------------

FILTERS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({}, expected()),
    ({"topic": "mail.print"}, expected(["mail.print"])),
    ({"topic": ["mail.send", "mail.print", "mail.send"]}, expected()),
    ({"topic": "mail.none"}, []),
    *(({"state": state}, expected(states=[state])) for state in STATES),
    ({"state": "dead", "topic": "mail.send"}, expected(["mail.send"], ["dead"])),
    ({"key_prefix": "de"}, expected(states=["delayed", "dead"])),
    ({"key_prefix": "dead:1"}, [(topic, "dead:1") for topic in sorted(VISIBLE)]),
    ({"key_prefix": "re", "state": "reserved"}, expected(states=["reserved"])),
    ({"key_prefix": "delayed", "state": "ready"}, []),
    ({"key_prefix": "%"}, []),
    ({"key_prefix": ""}, expected()),
    ({"due_from": "2030-01-01T00:01:01Z"}, sorted(set(expected(states=["delayed", "cancelled"])) - {
        (topic, f"{state}:0") for topic in VISIBLE for state in ("delayed", "cancelled")})),
    ({"due_until": "2030-01-01T00:01:00Z"}, expected(states=["reserved", "finished", "dead", "ready"])),
    ({"due_from": "2030-01-01T01:01:00+01:00", "due_until": "2030-01-01T00:01:00.001Z", "state": "delayed"},
     [(topic, "delayed:0") for topic in sorted(VISIBLE)]),
    ({"due_from": "0001-01-01T00:00:00+23:59", "due_until": "9999-12-31T23:59:59.9999999-23:59"}, expected()),
    ({"due_from": "2031-01-01T00:00:00Z"}, []),
    ({"due_from": "9999-12-31T23:59:59.9995Z"}, []),
    ({"due_from": "0000-01-01T00:00:00Z", "due_until": "0001-01-01T00:00:00Z"}, []),
]  # fmt: skip


def test_pages_of_every_filter_show_each_job_once(many_jobs: Rest) -> None:
    for query, found in FILTERS:
        for limit in (1, 5, 200):
            assert sorted(names(all_pages(many_jobs, limit=limit, **query))) == found, (query, limit)


def test_a_page_has_no_more_than_its_limit(many_jobs: Rest) -> None:
    for query, _found in FILTERS:
        assert len(many_jobs.get("jobs/", limit=2, **query)["results"]) <= 2, query


def test_job_in_a_list_has_the_same_data_as_alone(many_jobs: Rest) -> None:
    for job in all_pages(many_jobs):
        alone = many_jobs.get(f"jobs/{job['id']}/")
        assert alone | job == alone


def test_a_list_is_ordered_by_topic_and_its_live_jobs_by_due_time(rest: Rest) -> None:
    for topic, key, delay in [("mail.send", "a", 30), ("mail.send", "b", 10), ("mail.print", "c", 20)]:
        rest.make(key, topic=topic, delay_seconds=delay)
    assert [job["key"] for job in all_pages(rest, limit=1, state="delayed")] == ["c", "b", "a"]
    assert [job["key"] for job in all_pages(rest, limit=1)] == ["c", "a", "b"]


def test_next_page_is_a_url_with_the_same_filters(many_jobs: Rest) -> None:
    page = many_jobs.get("jobs/", topic=["mail.send", "mail.print"], state="dead", limit=2)
    address = urlsplit(page["next"])
    query = parse_qs(address.query)
    assert (address.scheme, address.netloc, address.path) == ("", "", "/api/jobs/")  # relative
    assert query.pop("cursor")
    assert query == {"topic": ["mail.send", "mail.print"], "state": ["dead"], "limit": ["2"]}


def test_default_page_size_is_fifty(rest: Rest) -> None:
    schedule.schedule_many({"topic": "mail.send", "key": f"{n:03}", "delay": 60} for n in range(60))
    page = rest.get("jobs/")
    assert (len(page["results"]), page["next"] is None) == (50, False)


def test_a_page_of_large_bodies_is_shorter_and_each_job_is_listed_once(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 200 jobs with 64 KiB each took half a minute to redact, and delayed the requests of all others."""
    sizes = [10, 990, 10, 2000, 990, 990, 5, 2000]
    for number, size in enumerate(sizes):
        rest.make(f"{number}", topic=VISIBLE[number % 2], delay_seconds=60, body="x" * (size - 2))
    monkeypatch.setattr(job_list, "MAX_PAGE_BODIES", 1000)
    queries: list[dict[str, Any]] = [{}, {"state": "delayed"}, {"key_prefix": ""}]
    for query in queries:
        pages, address = [], rest.get("jobs/", limit=200, **query)
        while address["next"] is not None:
            pages.append(address["results"])
            address = rest.get(address["next"])
        pages.append(address["results"])
        bodies = [[len(job["body"]) + 2 for job in page] for page in pages]
        assert sorted(job["key"] for page in pages for job in page) == [str(number) for number in range(len(sizes))]
        assert all(sum(page) <= 1000 or len(page) == 1 for page in bodies), bodies
        assert max(map(len, bodies)) > 1


@pytest.mark.parametrize("limit", [1, 3])
def test_unchanged_jobs_are_listed_once_while_others_change(rest: Rest, limit: int) -> None:
    """Jobs are finished, cancelled, rescheduled and created between the pages, on both sides of the cursor."""
    schedule.schedule_many({"topic": "mail.send", "key": f"stays:{n:02}", "delay": 100 + n} for n in range(12))
    schedule.schedule_many({"topic": "mail.send", "key": f"moves:{n:02}", "delay": 100 + n} for n in range(12))
    moving = [job.pk for job in Job.objects.filter(key__startswith="moves")]
    turn = iter(range(60))

    def change() -> None:
        number = next(turn, None)
        if number is None:
            return
        job_id = moving[number % len(moving)]
        if number % 3 == 0:
            control.cancel_job(job_id, by="x")
        elif Job.objects.get(pk=job_id).ended_at is None:
            control.reschedule_job(job_id, delay=number * 37 % 400, by="x")
        rest.make(f"new:{number}", topic="mail.send", delay_seconds=number * 53 % 400)

    for query in ({}, {"state": "delayed"}, {"key_prefix": "s"}, {"due_until": "2031-01-01T00:00:00Z"}):
        seen = [job["key"] for job in all_pages(rest, change, limit=limit, **query) if job["key"].startswith("stays")]
        assert sorted(seen) == [f"stays:{n:02}" for n in range(12)]


@pytest.mark.parametrize("key", ["a\u00a0b", "a\u200db", "👩\u200d🚀", "\ufeffa", "a'b\\", "Ä%_", "\ue000", "\u0378"])
def test_page_can_end_at_any_possible_key(rest: Rest, key: str) -> None:
    for other in ("0", key, key + "0", "\U0010fffd"):
        rest.make(other, delay_seconds=60)
    assert sorted(job["key"] for job in all_pages(rest, limit=1)) == sorted(["0", key, key + "0", "\U0010fffd"])
    assert sorted(job["key"] for job in all_pages(rest, limit=1, key_prefix=key)) == sorted([key, key + "0"])


# -- what is not shown --------------------------------------------------------------------------


def test_jobs_of_hidden_topics_are_not_listed(many_jobs: Rest) -> None:
    for query, _found in FILTERS:
        assert "hidden" not in str(all_pages(many_jobs, **query))


def test_a_filter_for_a_topic_without_a_grant_is_refused_whether_or_not_it_exists(rest: Rest) -> None:
    details = [
        rest.get("jobs/", 403, topic=["mail.send", topic])["detail"].replace(topic, "?")
        for topic in ("sms.send", "sms.none")
    ]
    assert details[0] == details[1]


def test_cursor_gives_no_access_to_other_topics(many_jobs: Rest) -> None:
    cursor = pagination.encode(KEY, Cursor(["", 0], "sms.send"))
    assert "hidden" not in str(many_jobs.get("jobs/", cursor=cursor))


def test_list_is_empty_without_grants(make_token: Callable[..., str], api: Any, many_jobs: Rest) -> None:
    assert Rest(api(make_token("nobody", topics={}))).get("jobs/") == {"next": None, "results": []}


@pytest.mark.parametrize("right", ["produce", "consume", "manage"])
def test_any_right_includes_reading(many_jobs: Rest, rest_of: Callable[..., Rest], right: str) -> None:
    assert len(all_pages(rest_of(right))) == 36


def test_staff_with_view_permission_see_every_topic(many_jobs: Rest, staff_api: Callable[..., Any]) -> None:
    assert "hidden" in str(all_pages(Rest(staff_api("delaytasks.view_job"))))
    assert all_pages(Rest(staff_api())) == []


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"topic": "mail send"}, ["topic"]),
        ({"topic": ["mail.send", ""]}, ["topic"]),
        ({"topic": ["mail.send"] * 101}, ["topic"]),
        ({"state": "live"}, ["state"]),
        ({"state": ""}, ["state"]),
        ({"state": ["dead", "ready"]}, ["state"]),
        ({"key_prefix": "k" * 256}, ["key_prefix"]),
        ({"key_prefix": "a\u0000"}, ["key_prefix"]),
        ({"due_from": "2030-01-01T00:00:00"}, ["due_from"]),
        ({"due_until": "tomorrow"}, ["due_until"]),
        ({"limit": 0}, ["limit"]),
        ({"limit": 201}, ["limit"]),
        ({"limit": "-1"}, ["limit"]),
        ({"limit": "1e1"}, ["limit"]),
        ({"limit": "٣"}, ["limit"]),
        ({"limit": "9" * 5000}, ["limit"]),
        ({"limit": ""}, ["limit"]),
        ({"cursor": "x" * 6001}, ["cursor"]),
        ({"topics": "mail.send"}, ["topics"]),
        ({"offset": 5, "page": 2}, ["offset", "page"]),
        ({"state": "live", "limit": 0}, ["limit", "state"]),
    ],
)
def test_invalid_parameter_is_named(rest: Rest, query: dict[str, Any], named: list[str]) -> None:
    assert sorted(fields(rest.get("jobs/", 400, **query))) == named


@pytest.mark.parametrize("given", ["2030-01-01T00:00:00+02:00", "2030-01-01T00:00:00"])
def test_refusal_of_a_time_shows_the_offset_as_it_is_written_in_a_url(rest: Rest, given: str) -> None:
    """In a query, "+" is a space."""
    assert "%2B02:00." in rest.get(f"jobs/?due_from={given}", 400)["detail"]
    assert rest.get("jobs/?due_from=2030-01-01T00:00:00%2B02:00")["results"] == []


@pytest.mark.parametrize("cursor", ["x", "\u00fc", "WyJrZXkiLCJtYWlsLnNlbmQiLCJhIiwxXQ"])  # the last: without a version
def test_invalid_cursor_is_refused(rest: Rest, cursor: str) -> None:
    refused = rest.get("jobs/", 400, cursor=cursor)
    assert refused["type"] == "urn:delaytasks:problem:bad-cursor"
    assert refused["detail"] == "The cursor is not valid. Request the first page, without a cursor."


def test_a_cursor_of_a_list_with_other_filters_is_refused(many_jobs: Rest) -> None:
    cursor = parse_qs(urlsplit(many_jobs.get("jobs/", state="dead", limit=1)["next"]).query)["cursor"][0]
    many_jobs.get("jobs/", 400, state="delayed", cursor=cursor)


# -- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [{}, {"state": "delayed"}, {"key_prefix": "k"}, {"state": "dead"}])
def test_the_number_of_queries_does_not_grow_with_the_jobs(rest: Rest, query: dict[str, Any]) -> None:
    counts = []
    for start in (0, 100):
        schedule.schedule_many(
            {"topic": "mail.send", "key": f"k:{start + n}", "delay": 60, "body": {"n": n}} for n in range(100)
        )
        counts.append(rest.count_queries(lambda: rest.get("jobs/", limit=200, **query)))
    assert counts[0] == counts[1] <= 10


def test_due_times_of_a_list_are_to_the_millisecond(rest: Rest) -> None:
    rest.make(delay_seconds=0.001)
    assert rest.get("jobs/")["results"][0]["due_at"] == at(0.001)
