"""What the board, the forecast, the health checks and Prometheus tell of schedules."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import RequestFactory
from prometheus_client.parser import text_string_to_metric_families

from delaytasks import clock, schedule
from delaytasks.admin.dashboard import tables
from delaytasks.models import MirrorMark, Schedule
from delaytasks.monitoring import forecast, prometheus, readiness
from delaytasks.recurrence import begin, maker, planned, schedules, statistics
from delaytasks.recurrence.cron import Cron

from .conftest import START, run_until

HOUR_MS = 3_600_000
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "SECONDS", 60)  # the machine may be busy
    monkeypatch.setattr(begin, "observers", [prometheus.observe_run])
    monkeypatch.setattr(prometheus, "_seen_schedules", set())
    prometheus.SCHEDULE_DRIFT.clear()
    prometheus.SCHEDULE_SKIPPED.clear()


def stats(topics: list[str] | None = None) -> list[statistics.ScheduleStats]:
    cache.clear()
    return list(statistics.recent("default", topics).schedules)


# -- board --------------------------------------------------------------------------------------


@pytest.mark.on_both
def test_runs_are_counted_with_their_drift(define, stage, db_clock):
    stage.recorder("tick")
    define(missed="last")
    run_until(stage, db_clock, START + timedelta(minutes=20))
    db_clock.advance(seconds=1803)  # 00:50:03; 00:30, 00:40 and 00:50 are due
    maker.make_due("default")
    stage.go()
    (found,) = stats()
    at = clock.to_ms(START) + 3_600_000
    assert found == ("tick", "tick", "running", at, 3000, 3000, 3, 2, 0)


@pytest.mark.on_both
def test_skipped_runs_are_told_from_missed_ones(define, stage, db_clock):
    stage.recorder("tick")
    define(missed="all", within=60, running="allow")
    db_clock.advance(seconds=700)
    maker.make_due("default")
    stage.go()
    db_clock.advance(seconds=600)
    schedules.pause("tick")
    stage.go()
    (found,) = stats()
    assert (found.state, found.next_ms, found.ran, found.missed, found.skipped) == ("paused", None, 0, 1, 1)
    assert (found.drift_ms, found.worst_ms) == (None, None)


@pytest.mark.on_both
def test_only_the_newest_runs_are_read(define, stage, db_clock, monkeypatch):
    stage.recorder("tick")
    define(every=60, running="allow")
    define("tick2", every=60)  # its keys begin alike
    monkeypatch.setattr(statistics, "RUNS", 5)
    run_until(stage, db_clock, START + timedelta(minutes=10))
    assert [each.ran for each in stats()] == [5, 5]


def test_the_next_come_first_and_series_are_left_out(define, stage, db_clock, monkeypatch):
    stage.recorder("tick")
    stage.recorder("tock")
    define("later", every=900)
    define("sooner", every=600)
    define("hidden", topic="tock", every=60)
    define("off", every=30)
    schedules.pause("off")
    schedule("tick", "order:1", period=5, repeat=None)
    assert [each.name for each in stats(["tick"])] == ["sooner", "later", "off"]
    monkeypatch.setattr(statistics, "MAX_SCHEDULES", 2)
    assert (len(stats()), statistics.recent("default", None).total) == (2, 4)


def test_a_schedule_that_was_stopped_is_shown(define, stage, db_clock):
    stage.recorder("tick")
    define(every=None, cron="0 * * * *")
    Schedule.objects.update(tz="Mars/Base", problem="no zone", ended=True)
    (found,) = stats()
    assert (found.state, found.next_ms, found.ran) == ("stopped", None, 0)


def test_the_board_has_a_row_for_each_schedule(define, stage, db_clock, admin_client):
    stage.recorder("tick")
    define()
    run_until(stage, db_clock, START + timedelta(minutes=20))
    cache.clear()
    table = admin_client.get("/admin/delaytasks/board/numbers/").json()["schedules"]
    assert table["head"][:3] == ["Schedule", "Topic", "Next run"]
    (row,) = table["rows"]
    assert row[:2] == ["tick", "tick"]
    assert row[5:] == ["2", "0", "0"]
    assert table["note"] == "counted over the newest 50 runs of each schedule"
    assert 'id="dt-schedules"' in admin_client.get("/admin/delaytasks/board/").content.decode()


def test_the_board_has_the_date_of_a_run_that_is_far_away(define, stage, db_clock, admin_client):
    stage.recorder("tick")
    define(every=None, cron="30 2 24 12 *")
    cache.clear()
    (row,) = admin_client.get("/admin/delaytasks/board/numbers/").json()["schedules"]["rows"]
    assert row[2] == f"{START.year}-12-24 02:30:00"


def test_the_board_without_schedules_has_an_empty_table():
    assert tables.schedules(statistics.Statistics((), 0))["rows"] == []


# -- forecast -----------------------------------------------------------------------------------


def hours() -> list[int]:
    cache.clear()
    return [each.due.number for each in forecast.hours("default", None).bins]


@pytest.mark.parametrize(
    ("options", "each_hour"),
    [({"every": 600}, 6), ({"every": 1}, 3600), ({"every": None, "cron": "*/20 * * * *"}, 3),
     ({"every": None, "rrule": "FREQ=MINUTELY;INTERVAL=30;BYSECOND=0"}, 2),
     ({"every": None, "cron": "0 * * * *", "period": 60, "repeat": 9}, 10)],
)  # fmt: skip
def test_the_forecast_has_what_schedules_will_make(define, stage, db_clock, options, each_hour):
    stage.recorder("tick")
    define(**options)
    found = hours()
    assert found[1:] == [each_hour] * 23
    assert each_hour - 1 <= found[0] <= each_hour
    db_clock.advance(seconds=1800)
    maker.make_due("default")
    assert hours()[1:] == [each_hour] * 23


def test_what_is_made_and_what_is_to_come_are_counted_once(define, stage, db_clock):
    stage.recorder("tick")
    define(every=60)
    schedule("tick", "once", delay=30)
    cache.clear()
    minutes = forecast.minutes("default", None)
    assert [each.due.number for each in minutes.bins] == [1] + [1] * 59
    assert minutes.sum.complete


def test_herds_name_the_topics_of_schedules(define, stage, db_clock):
    stage.recorder("tick")
    define(every=None, cron="0 5 * * *", period=1, repeat=99)
    cache.clear()
    herd = forecast.hours("default", None).bins[5]
    assert (herd.due.number, herd.herd, herd.topics[0][0]) == (100, True, "tick")


def test_paused_schedules_and_other_topics_are_left_out(define, stage, db_clock):
    stage.recorder("tick")
    define()
    cache.clear()
    assert sum(each.due.number for each in forecast.hours("default", ["other"]).bins) == 0
    schedules.pause("tick")
    assert sum(hours()) == 0


def test_when_the_time_is_over_the_numbers_are_lower_bounds(define, stage, db_clock, monkeypatch):
    stage.recorder("tick")
    define(every=None, cron="* * * * *")
    monkeypatch.setattr(planned, "SECONDS", -1)
    cache.clear()
    assert not forecast.hours("default", None).sum.complete


def test_spans_that_were_counted_before_cost_nothing(define, stage, db_clock, monkeypatch):
    stage.recorder("tick")
    define(every=None, cron="*/7 * * * *")
    first = hours()
    monkeypatch.setattr(Cron, "next_after", None)
    assert hours() == first


# -- health -------------------------------------------------------------------------------------


def check() -> readiness.Check:
    cache.clear()
    (found,) = readiness.run(names=["schedules"])
    return found


def test_health_knows_schedules_that_are_behind(define, stage, db_clock):
    stage.recorder("tick")
    assert check().state == "ok"
    define()
    define("paused", every=60)
    schedules.pause("paused")
    db_clock.advance(seconds=600 + 59)
    assert check().state == "ok"
    db_clock.advance(seconds=61)
    found = check()
    assert (found.state, found.message) == ("failing", "tick is 2 min behind: its next run has not been made")
    maker.make_due("default")
    assert check().state == "ok"


def test_health_names_schedules_that_a_problem_has_stopped(define, stage, db_clock):
    stage.recorder("tick")
    define()
    Schedule.objects.update(tz="Mars/Base", made_until=clock.from_ms(db_clock.now_ms))
    maker.make_due("default")
    found = check()
    assert (found.state, found.message) == ("degraded", "schedules stopped by a problem: tick")


# -- Prometheus ---------------------------------------------------------------------------------


def scrape() -> dict[tuple[str, ...], float]:
    cache.clear()
    text = prometheus.view(RequestFactory().get("/metrics")).content.decode()
    return {
        (sample.name.removeprefix("delaytasks_schedule"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("delaytasks_schedule") and not sample.name.endswith("_created")
    }


def test_prometheus_has_next_run_drift_and_skipped(define, stage, db_clock):
    stage.recorder("tick")
    MirrorMark.objects.all().delete()
    define(missed="all", within=60, running="allow")
    define("other", every=1200)
    schedule("tick", "order:1", period=900, repeat=1, delay=900)
    db_clock.advance(seconds=700)  # 00:10 is too late
    maker.make_due("default")
    stage.go()
    db_clock.advance(seconds=503)  # 00:15 of the series; 00:20 of both
    maker.make_due("default")
    stage.go()
    found = scrape()
    at = START.timestamp()
    assert found == {
        ("_next_run_timestamp_seconds", "tick"): at + 1800, ("_next_run_timestamp_seconds", "other"): at + 2400,
        ("_drift_seconds", "tick"): 3, ("_drift_seconds", "other"): 3, ("_drift_seconds", "series"): 303,
        ("_skipped_total", "late", "tick"): 1, ("s_behind_seconds",): 0,
    }  # fmt: skip


def test_labels_are_bounded(define, stage, db_clock, monkeypatch):
    monkeypatch.setattr(prometheus, "MAX_TOPICS", 2)
    labels: list[Any] = [prometheus.schedule_label(name, is_series=False) for name in ("a", "b", "c", "a")]
    assert labels == ["a", "b", "other", "a"]
