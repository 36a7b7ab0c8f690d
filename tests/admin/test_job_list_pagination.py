"""Pagination of the list of jobs: forwards and backwards, complete, and stable while jobs change."""

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from itertools import product
from random import Random
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group
from django.contrib.messages import get_messages
from django.test import RequestFactory
from django.utils.http import urlencode

from delaytasks.admin.jobs import JobAdmin
from delaytasks.db import pagination
from delaytasks.db.pagination import Cursor, Page
from delaytasks.db.scans import DUE, NEWEST, Order
from delaytasks.models import Job, Topic
from delaytasks.states import State

from .conftest import NOW, TOPIC, make_job
from .test_job_list import keys, text_of

pytestmark = pytest.mark.on_both  # the SQL is planned by each database

LIST = "/admin/delaytasks/job/"
MINUTE = timedelta(minutes=1)
SIZE = 4
TOPICS = (TOPIC, "test.b", "test.c")


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", SIZE)


@pytest.fixture
def many(db: None) -> None:
    """250 jobs: two and a half pages."""
    rows = [
        Job(topic=TOPIC, key=f"many:{n:03}", state=State.DELAYED, due_at=NOW + n * MINUTE, ttr_ms=1, created_at=NOW)
        for n in range(250)
    ]
    Job.objects.bulk_create(rows)


def link(page: Any, rel: str) -> str:
    found = re.search(rf'href="(\?[^"]+)" rel="{rel}"', page.content.decode())
    return LIST + unescape(found[1]) if found else ""


def cursor(order: Order, *position: Any, back: bool = False) -> str:
    return pagination.encode(order, Cursor([*position], backwards=back))


def test_pages_follow_each_other_without_a_count(admin_client, many):
    seen: list[str] = []
    address = LIST + "?state=delayed"
    for _ in range(3):
        page = admin_client.get(address)
        seen += keys(page)
        address = link(page, "next")
    assert seen == [f"many:{n:03}" for n in range(1, 250)]
    assert not address


def test_the_previous_pages_are_the_same_as_before(admin_client, many):
    first = admin_client.get(LIST, {"state": "delayed"})
    second = admin_client.get(link(first, "next"))
    third = admin_client.get(link(second, "next"))
    assert keys(admin_client.get(link(third, "prev"))) == keys(second)
    again = admin_client.get(link(admin_client.get(link(third, "prev")), "prev"))
    assert keys(again) == keys(first)
    assert not link(again, "prev")
    assert "First page" in text_of(third)
    assert "First page" not in text_of(first)


def test_going_back_shows_the_found_jobs_even_if_the_first_page_takes_longer_to_find(
    admin_client, many, short_pages, monkeypatch
):
    second = admin_client.get(link(admin_client.get(LIST, {"state": "delayed"}), "next"))
    Job.objects.filter(key="many:001").delete()
    real = pagination.find
    monkeypatch.setattr(
        pagination, "find", lambda *args: Page([], [1, 1]) if args[3] is None else real(*args)
    )  # no job within the row limit
    assert keys(admin_client.get(link(second, "prev"))) == ["many:002", "many:003", "many:004"]


def test_new_jobs_do_not_move_others_to_another_page(admin_client, many):
    first = admin_client.get(LIST)
    for number in range(5):
        make_job(f"new:{number}")
    second = admin_client.get(link(first, "next"))
    assert keys(second)[0] == "many:149"
    assert keys(admin_client.get(link(second, "prev"))) == keys(first)


def test_the_last_row_of_a_page_may_be_deleted(admin_client, many):
    first = admin_client.get(LIST)
    Job.objects.filter(key=keys(first)[-1]).delete()
    assert keys(admin_client.get(link(first, "next")))[0] == "many:149"


def test_going_back_to_the_beginning_shows_a_full_page(admin_client, many, short_pages):
    first = admin_client.get(LIST, {"state": "delayed"})
    second = admin_client.get(link(first, "next"))
    Job.objects.filter(key__in=keys(first)[:2]).delete()
    back = admin_client.get(link(second, "prev"))
    assert keys(back) == [*keys(first)[2:], *keys(second)[:2]]
    assert not link(back, "prev")


def test_a_page_says_that_there_are_more_jobs_without_their_number(admin_client, many):
    page = text_of(admin_client.get(LIST))
    assert "100 jobs , and there are more" in page or "100 jobs, and there are more" in page
    assert "250" not in page


def test_select_across_is_not_offered(admin_client, many):
    page = admin_client.get(LIST).content.decode()
    assert "0 of 100 selected" in page
    assert "across all pages" not in page


def test_an_empty_list_has_a_message(admin_client):
    assert "No jobs." in text_of(admin_client.get(LIST, {"state": "dead"}))


def test_another_filter_or_sort_starts_at_the_first_page(admin_client, many):
    second = admin_client.get(link(admin_client.get(LIST, {"state": "live"}), "next"))
    body = second.content.decode().replace("&amp;", "&")
    others = re.findall(r'href="(\?(?:[^"]*(?:state=dead|due=hour|o=-?4))[^"]*)"', body)
    assert len(others) >= 3
    assert not [address for address in others if "p=" in address]


@pytest.mark.parametrize("wrong", ["2", "nonsense", "%00", cursor(DUE, 5, 5), pagination.encode(NEWEST, Cursor())])
def test_an_invalid_cursor_shows_the_first_page_with_a_message(admin_client, wrong):
    make_job("order:1")
    page = admin_client.get(LIST, {"p": wrong})
    assert page.status_code == 200
    assert keys(page) == ["order:1"]
    texts = [str(message) for message in get_messages(page.wsgi_request)] or text_of(page)
    assert "The page in the URL is not valid. Showing the first page." in str(texts)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("pk", [0, 2**63 - 1])
def test_the_last_possible_position_is_valid(admin_client, pk, back):
    make_job("order:1")
    page = admin_client.get(LIST, {"p": cursor(NEWEST, pk, back=back)})
    assert page.status_code == 200
    assert "The address names no page" not in text_of(page)
    for rel in ("next", "prev"):
        if link(page, rel):
            assert admin_client.get(link(page, rel)).status_code == 200


@pytest.mark.parametrize("moment", [0, 253_402_300_799_999])
def test_any_time_that_a_database_can_store_can_be_a_position(admin_client, moment):
    make_job("order:1")
    assert admin_client.get(LIST, {"state": "live", "p": cursor(DUE, moment, 1)}).status_code == 200


@pytest.mark.parametrize("key", ["a\u00a0b", "\u3000", "\u200b", "ж", "\U0001f600"])
def test_every_key_can_be_a_position(admin_client, short_pages, key):
    for number in range(SIZE + 1):
        make_job(f"k{key}{number}")
    page = admin_client.get(LIST, {"q": "k"})
    assert keys(admin_client.get(link(page, "next"))) == [f"k{key}{SIZE}"]


# Every combination finds the same jobs as a plain query


@pytest.fixture
def mixture(db: None, monkeypatch: pytest.MonkeyPatch, short_pages: None) -> None:
    """60 jobs of three topics in all states, many due at the same time; and limits low enough to have an effect."""
    monkeypatch.setattr(pagination, "ROUNDS", (3, 6))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 1)
    monkeypatch.setattr(pagination, "SMALL_TOPIC", 25)
    for name in TOPICS:
        Topic.objects.get_or_create(name=name)
    random = Random(7)
    for number in range(60):
        state = random.choice([State.DELAYED] * 3 + [State.READY] * 3 + list(State))
        due = random.choice([0, 5, 5, 5, 30, 61, 600, 1500, 9000]) * MINUTE
        make_job(f"k{random.randrange(40):02}:{number}", state, due=due, topic=random.choice(TOPICS * 2 + TOPICS[:2]))


def changelist(user: Any, query: dict[str, str] | str) -> Any:
    """Return the changelist of a URL without rendering it."""
    address = query if isinstance(query, str) else f"?{urlencode(query)}"
    request = RequestFactory().get(LIST + address)
    request.user = user
    return admin.site._registry[Job].get_changelist_instance(request)


def keys_on_page(cl: Any) -> list[str]:
    return [job.key for job in cl.result_list]


def all_pages(user: Any, query: dict[str, str]) -> Iterator[list[str]]:
    """Yield the keys of each page."""
    cl = changelist(user, query)
    for _ in range(100):
        assert len(keys_on_page(cl)) <= SIZE
        yield keys_on_page(cl)
        if not cl.next_url:
            return
        cl = changelist(user, cl.next_url)
    raise AssertionError("the pages do not end")


def expected(cl: Any, query: dict[str, str]) -> list[str]:
    jobs = list(cl.queryset)
    column, down = query.get("o", "").lstrip("-"), query.get("o", "").startswith("-")
    if query.get("q") or (column == "3" and "topic" in query):
        down = down and column == "3"
        return [job.key for job in sorted(jobs, key=lambda job: (job.key.encode(), job.pk), reverse=down)]
    if query.get("state") in ("live", "delayed", "ready", "reserved") or "due" in query:
        return [job.key for job in sorted(jobs, key=lambda job: (job.due_at, job.pk), reverse=down)]
    return [job.key for job in sorted(jobs, key=lambda job: -job.pk)]


COMBINATIONS = [
    {name: value for name, value in zip(("state", "topic", "due", "q"), values, strict=True) if value} | order
    for *values, order in product(
        ["", "live", *(state.word for state in State)],
        ["", "test.c"],
        ["", "today"],
        ["", "k1"],
        [{}, {"o": "-4"}, {"o": "3"}, {"o": "-3"}],
    )
]


def check(user: Any, query: dict[str, str]) -> set[str]:
    found = [key for page in all_pages(user, query) for key in page]
    assert found == expected(changelist(user, query), query), query
    return set(found)


def test_all_pages_together_contain_all_matches_in_order(admin_user, mixture):
    for query in COMBINATIONS:
        check(admin_user, query)


def test_all_pages_together_contain_all_visible_matches_for_a_limited_user(staff, mixture):
    Topic.objects.filter(name="test.b").update(visible_to=[Group.objects.create(name="others").pk])
    user = staff("delaytasks.view_job", "delaytasks.operate_job").user  # with the checkbox column, as above
    hidden = set(Job.objects.filter(topic="test.b").values_list("key", flat=True))
    assert hidden
    for query in COMBINATIONS:
        assert not hidden & check(user, query)


BACK = [{}, {"state": "cancelled"}, {"state": "ready"}, {"q": "k", "state": "live"}, {"topic": TOPIC, "o": "-3"}]


@pytest.mark.parametrize("query", BACK, ids=str)
def test_paging_back_to_the_first_page_lists_the_same_jobs(admin_user, mixture, query):
    forward = [key for page in all_pages(admin_user, query) for key in page]
    cl = changelist(admin_user, query)
    while cl.next_url:
        cl = changelist(admin_user, cl.next_url)
    back = keys_on_page(cl)
    while cl.previous_url:
        cl = changelist(admin_user, cl.previous_url)
        back = keys_on_page(cl) + back
    assert list(dict.fromkeys(back)) == forward


def test_a_search_with_few_matches_pauses_and_can_be_continued(admin_client, monkeypatch):
    monkeypatch.setattr(pagination, "ROUNDS", (5,))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 1)
    make_job("old", State.CANCELLED)
    for number in range(12):
        make_job(f"n:{number}")
    page = admin_client.get(LIST, {"state": "cancelled"})
    assert keys(page) == []
    assert "Continue searching" in text_of(page)
    assert "No jobs." not in text_of(page)
    for _ in range(2):
        page = admin_client.get(LIST + page.context["cl"].continue_url)
    assert keys(page) == ["old"]
    assert "Continue searching" not in text_of(page)


def test_a_small_topic_is_shown_at_once_regardless_of_the_age_of_its_jobs(admin_client, monkeypatch):
    monkeypatch.setattr(pagination, "ROUNDS", (5,))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 1)
    monkeypatch.setattr(pagination, "SMALL_TOPIC", 6)
    for number in range(3):
        make_job(f"old:{number}", State.FINISHED, topic="test.old")
    for number in range(12):
        make_job(f"n:{number}")
    assert keys(admin_client.get(LIST, {"topic": "test.old"})) == ["old:2", "old:1", "old:0"]
    assert keys(admin_client.get(LIST, {"topic": "test.old", "state": "finished"})) == ["old:2", "old:1", "old:0"]


def test_a_large_unused_topic_offers_the_list_by_key(admin_client, monkeypatch):
    monkeypatch.setattr(pagination, "ROUNDS", (5,))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 1)
    monkeypatch.setattr(pagination, "SMALL_TOPIC", 2)
    for number in range(3):
        make_job(f"old:{number}", State.FINISHED, topic="test.old")
    for number in range(12):
        make_job(f"n:{number}")
    page = admin_client.get(LIST, {"topic": "test.old"})
    assert keys(page) == []
    assert "Show the whole topic, by key" in text_of(page)
    assert keys(admin_client.get(LIST + page.context["cl"].by_key_url)) == ["old:0", "old:1", "old:2"]


def test_a_slow_database_gets_no_further_round(admin_client, monkeypatch):
    monkeypatch.setattr(pagination, "ROUNDS", (2, 2, 2))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 1)
    monkeypatch.setattr(pagination, "PAGE_SECONDS", -1)
    for number in range(12):
        make_job(f"n:{number}")
    make_job("reserved", State.RESERVED)
    page = admin_client.get(LIST, {"state": "cancelled"})
    following = page.context["cl"].next_url.removeprefix("?p=").partition("&")[0]
    assert pagination.decode(following, NEWEST).after == [Job.objects.order_by("-pk")[1].pk]
