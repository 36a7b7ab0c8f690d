"""The board's table of the last days: statistics of reports, permissions, comparisons."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from delaytasks.admin.dashboard import data, tables
from delaytasks.models import Topic, TopicStat
from delaytasks.monitoring import daily_stats
from tests.support.query_plans import plans_of

from .conftest import NOW, TOPIC

NUMBERS = "/admin/delaytasks/board/numbers/"
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
ZERO = {"finished": 0, "retried": 0, "died": 0, "cancelled": 0, "snoozed": 0, "begun": 0}


def hour(ago: timedelta, happened: int, late_p95_ms: int | None = 5, topic: str = TOPIC) -> None:
    """Create the statistics of the hour that began `ago` before NOW, a full hour."""
    TopicStat.objects.create(topic=topic, hour_at=NOW - ago, happened=happened, late_p95_ms=late_p95_ms, **ZERO)


def past(client: Client, **query: str) -> Any:
    cache.clear()
    return client.get(NUMBERS, query).json()["past"]


def test_each_topic_shows_its_last_day_and_week_compared_with_the_week_before(admin_client, db_clock):
    db_clock.advance(seconds=1200)
    hour(timedelta(), 1_000_000, 99_000)  # the current hour
    hour(HOUR, 1_100, 40)
    hour(DAY, 100, 1_500)
    hour(DAY + HOUR, 300, 70_000)
    hour(WEEK, 50)
    hour(WEEK + HOUR, 950)
    hour(WEEK + DAY + HOUR, 500)
    hour(2 * WEEK + HOUR, 7)
    found = past(admin_client)

    assert found["rows"] == [[TOPIC, "1,200", "+26 %", "1 s", "1,550", "+7 %", "1 min"]]
    assert found["note"] == "newest hour in the reports: Tue 00:00, 20 min ago"
    assert len(found["head"]) == 7


def test_a_day_ends_with_the_newest_hour_of_the_reports_so_that_equal_periods_are_compared(admin_client):
    for hours in range(12, 24 * 15):  # the last report was made twelve hours ago
        hour(hours * HOUR, 10)
    found = past(admin_client)
    assert found["rows"] == [[TOPIC, "240", "0 %", "5 ms", "1,680", "0 %", "5 ms"]]
    assert found["note"] == "newest hour in the reports: Mon 12:00, 12 h 0 min ago"


def test_a_report_of_more_than_a_day_ago_does_not_cover_the_last_day(admin_client):
    hour(3 * DAY, 10)
    hour(3 * DAY + WEEK, 10)
    assert past(admin_client)["rows"] == [[TOPIC, "0", "–", "–", "10", "0 %", "5 ms"]]


def test_a_missing_comparison_is_a_dash(admin_client):
    hour(HOUR, 3, None)
    assert past(admin_client)["rows"] == [[TOPIC, "3", "–", "–", "3", "–", "–"]]
    same, half, none = (daily_stats.PeriodStats(n, None) for n in (10, 5, 0))
    assert [tables.change(now, same) for now in (same, half, none)] == ["0 %", "−50 %", "−100 %"]


def test_before_the_first_report_only_a_note_is_shown(admin_client):
    assert past(admin_client) == {
        "head": [], "rows": [],
        "note": "No report of the data pipeline covers the last days yet.",
    }  # fmt: skip
    hour(3 * WEEK, 5)  # too old
    assert past(admin_client)["rows"] == []


def test_the_busiest_topics_come_first_and_the_others_are_counted(admin_client, monkeypatch):
    monkeypatch.setattr(tables, "MAX_TOPICS", 2)
    for n, name in enumerate(("few", "most", "some")):
        hour(HOUR, (1, 3, 2)[n], topic=name)
    found = past(admin_client)
    assert [row[0] for row in found["rows"]] == ["most", "some"]
    assert found["note"].endswith(" · 1 more topic")


def test_hidden_topics_are_in_no_row_and_no_note(staff, admin_client):
    Topic.objects.create(name="secret.topic", visible_to=[999])
    hour(timedelta(), 9, topic="secret.topic")
    hour(DAY, 5)
    hour(DAY, 5, topic="nobody.said")
    client = staff("delaytasks.view_job")
    found = past(client)

    assert [row[0] for row in past(admin_client)["rows"]] == ["nobody.said", TOPIC, "secret.topic"]
    assert [row[0] for row in found["rows"]] == [TOPIC]
    assert "1 d 0 h ago" in found["note"], "the age is that of the report"
    assert client.get(NUMBERS, {"topic": "secret.topic"}).status_code == 404


def test_a_chosen_topic_is_shown_alone(admin_client):
    Topic.objects.create(name="mail.send")
    hour(HOUR, 5)
    hour(HOUR, 6, topic="mail.send")
    assert [row[0] for row in past(admin_client, topic="mail.send")["rows"]] == ["mail.send"]


def test_cached_statistics_do_not_reveal_hidden_topics(staff, admin_client):
    Topic.objects.create(name="secret.topic", visible_to=[999])
    hour(HOUR, 9, topic="secret.topic")
    assert past(admin_client)["rows"]
    assert staff("delaytasks.view_job").get(NUMBERS).json()["past"]["rows"] == []  # from the cache


@pytest.mark.on_both
def test_statistics_need_two_queries_and_are_cached_for_a_minute():
    hour(HOUR, 1)
    for n in range(30):
        hour(HOUR, 1, topic=f"t{n}")
    with CaptureQueriesContext(connection) as captured:
        assert len(daily_stats.topic_histories("default")) == 31
        assert len(daily_stats.topic_histories("default")) == 31
    assert len([query for query in captured.captured_queries if "topicstat" in query["sql"]]) == 2


def test_an_unreadable_table_does_not_affect_the_other_numbers(admin_client, monkeypatch):
    def refused(using: str) -> Any:
        raise DatabaseError("canceling statement due to statement timeout")

    monkeypatch.setattr(data.daily_stats, "topic_histories", refused)
    found = admin_client.get(NUMBERS).json()
    assert found["past"] is None
    assert found["tiles"]


def test_the_table_is_in_the_language_of_the_viewer(admin_client):
    hour(HOUR, 5)
    with translation.override("zh-hans"):
        head = tables.daily(daily_stats.topic_histories("default"), None, "default")["head"]
    assert head[1] == "事件，最近 24 小时"


@pytest.mark.only_on("postgresql")
def test_old_statistics_are_not_read():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO delaytasks_topicstat (topic, hour_at, happened, finished, retried, died, cancelled, snoozed,"
            " begun) SELECT 't' || t, %s - n * interval '1 hour', 1, 1, 0, 0, 0, 0, 1"
            " FROM generate_series(1, 10) AS t, generate_series(1, 5000) AS n", [NOW],
        )  # fmt: skip
        cursor.execute("ANALYZE delaytasks_topicstat")
    plans = [plan for plan in plans_of(lambda: daily_stats.topic_histories("default")) if "topicstat" in plan.sql]
    assert plans
    for plan in plans:
        assert not plan.scans("delaytasks_topicstat"), str(plan)
        assert plan.indexes == ["delaytasks_topicstat_hour"], str(plan)
