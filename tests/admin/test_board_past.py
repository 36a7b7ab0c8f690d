"""The board's last days: what a report found, for those who may see it, beside the week before."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from delaytasks import lastdays
from delaytasks.admin import boardnumbers, boardpast
from delaytasks.models import Topic, TopicStat
from tests.contract.plans import plans_of

from .conftest import NOW, TOPIC

NUMBERS = "/admin/delaytasks/board/numbers/"
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
ZERO = {"finished": 0, "retried": 0, "died": 0, "cancelled": 0, "snoozed": 0, "begun": 0}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def hour(ago: timedelta, happened: int, late_p95_ms: int | None = 5, topic: str = TOPIC) -> None:
    """What a report told of the hour that began so long before NOW, which is the beginning of one."""
    TopicStat.objects.create(topic=topic, hour_at=NOW - ago, happened=happened, late_p95_ms=late_p95_ms, **ZERO)


def past(client: Client, **query: str) -> Any:
    cache.clear()
    return client.get(NUMBERS, query).json()["past"]


def test_each_topic_is_told_with_its_last_day_and_week_beside_those_before(admin_client, db_clock):
    db_clock.advance(seconds=1200)
    hour(timedelta(), 1_000_000, 99_000)  # the hour that runs
    hour(HOUR, 1_100, 40)
    hour(DAY, 100, 1_500)
    hour(DAY + HOUR, 300, 70_000)
    hour(WEEK, 50)
    hour(WEEK + HOUR, 950)
    hour(WEEK + DAY + HOUR, 500)
    hour(2 * WEEK + HOUR, 7)
    found = past(admin_client)

    assert found["rows"] == [[TOPIC, "1,200", "+26 %", "1 s", "1,550", "+7 %", "1 min"]]
    assert found["note"] == "the newest hour is that of Tue 00:00, 20 min ago"
    assert len(found["head"]) == 7


def test_where_there_is_nothing_to_compare_with_there_is_a_dash(admin_client):
    hour(HOUR, 3, None)
    assert past(admin_client)["rows"] == [[TOPIC, "3", "–", "–", "3", "–", "–"]]
    same, half, none = (lastdays.Stretch(n, None) for n in (10, 5, 0))
    assert [boardpast.change(now, same) for now in (same, half, none)] == ["0 %", "−50 %", "−100 %"]


def test_before_the_first_report_nothing_is_shown_but_how_to_make_one(admin_client):
    assert past(admin_client) == {
        "head": [], "rows": [],
        "note": "No report of the data pipeline tells of the last days yet.",
    }  # fmt: skip
    hour(3 * WEEK, 5)  # too long ago to say anything
    assert past(admin_client)["rows"] == []


def test_the_topics_with_most_come_first_and_how_many_more_there_are_is_said(admin_client, monkeypatch):
    monkeypatch.setattr(boardpast, "MOST", 2)
    for n, name in enumerate(("few", "most", "some")):
        hour(HOUR, (1, 3, 2)[n], topic=name)
    found = past(admin_client)
    assert [row[0] for row in found["rows"]] == ["most", "some"]
    assert found["note"].endswith(" · 1 more topic")


def test_a_topic_that_somebody_may_not_see_is_in_no_row_and_no_note(staff, admin_client):
    Topic.objects.create(name="secret.topic", visible_to=[999])
    hour(timedelta(), 9, topic="secret.topic")
    hour(DAY, 5)
    hour(DAY, 5, topic="nobody.said")
    client = staff("delaytasks.view_job")
    found = past(client)

    assert [row[0] for row in past(admin_client)["rows"]] == ["nobody.said", TOPIC, "secret.topic"]
    assert [row[0] for row in found["rows"]] == [TOPIC]
    assert "1 d 0 h ago" in found["note"], "and not that something happened just now"
    assert client.get(NUMBERS, {"topic": "secret.topic"}).status_code == 404


def test_one_topic_that_was_chosen_is_told_alone(admin_client):
    Topic.objects.create(name="mail.send")
    hour(HOUR, 5)
    hour(HOUR, 6, topic="mail.send")
    assert [row[0] for row in past(admin_client, topic="mail.send")["rows"]] == ["mail.send"]


def test_what_was_read_for_one_person_is_not_shown_to_another(staff, admin_client):
    Topic.objects.create(name="secret.topic", visible_to=[999])
    hour(HOUR, 9, topic="secret.topic")
    assert past(admin_client)["rows"]
    assert staff("delaytasks.view_job").get(NUMBERS).json()["past"]["rows"] == []  # from what is kept


def test_however_many_topics_it_is_one_question_and_none_within_a_minute():
    hour(HOUR, 1)
    for n in range(30):
        hour(HOUR, 1, topic=f"t{n}")
    with CaptureQueriesContext(connection) as captured:
        assert len(lastdays.past("default")) == 31
        assert len(lastdays.past("default")) == 31
    assert len([query for query in captured.captured_queries if "topicstat" in query["sql"]]) == 1


def test_a_table_that_cannot_be_read_leaves_the_rest_standing(admin_client, monkeypatch):
    def refused(using: str) -> Any:
        raise DatabaseError("canceling statement due to statement timeout")

    monkeypatch.setattr(boardnumbers.lastdays, "past", refused)
    found = admin_client.get(NUMBERS).json()
    assert found["past"] is None
    assert found["tiles"]


def test_it_is_said_in_the_readers_language(admin_client):
    hour(HOUR, 5)
    with translation.override("zh-hans"):
        head = boardpast.table(lastdays.past("default"), None, "default")["head"]
    assert head[1] == "事件，最近 24 小时"


@pytest.mark.only_on("postgresql")
def test_years_of_hours_are_not_read_for_the_last_days():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO delaytasks_topicstat (topic, hour_at, happened, finished, retried, died, cancelled, snoozed,"
            " begun) SELECT 't' || t, %s - n * interval '1 hour', 1, 1, 0, 0, 0, 0, 1"
            " FROM generate_series(1, 10) AS t, generate_series(1, 5000) AS n", [NOW],
        )  # fmt: skip
        cursor.execute("ANALYZE delaytasks_topicstat")
    plans = [plan for plan in plans_of(lambda: lastdays.past("default")) if "topicstat" in plan.sql]
    assert plans
    for plan in plans:
        assert not plan.scans("delaytasks_topicstat"), str(plan)
        assert plan.indexes == ["delaytasks_topicstat_hour"], str(plan)
