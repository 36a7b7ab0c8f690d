"""The board: its numbers, permissions and queries."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.staticfiles import finders
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import include, path
from django.utils import translation

from delaytasks.admin.dashboard import data, labels
from delaytasks.admin.dashboard.admin import BoardAdmin
from delaytasks.admin.dashboard.tiles import due_tiles
from delaytasks.admin.jobs import JobAdmin
from delaytasks.clock import from_ms, to_ms
from delaytasks.db import counts
from delaytasks.db.counts import Count
from delaytasks.models import Board, Job, MirrorMark, Schedule, Topic
from delaytasks.monitoring import health, last_hour, readiness
from delaytasks.monitoring.forecast import Bin, Forecast
from delaytasks.states import Outcome, State

from .conftest import NOW, TOPIC, make_event, make_job

BOARD = "/admin/delaytasks/board/"
NUMBERS = f"{BOARD}numbers/"
MINUTE = timedelta(minutes=1)


def numbers(client: Client, **query: str) -> Any:
    return client.get(NUMBERS, query).json()


def tiles(client: Client, **query: str) -> dict[str, Any]:
    return {tile["name"]: tile for tile in numbers(client, **query)["tiles"]}


def chart(client: Client, name: str, **query: str) -> Any:
    return numbers(client, **query)["charts"][name]


def finished(job: Job, outcome: Outcome = Outcome.FINISHED, *, ago: timedelta = MINUTE, late_ms: int = 5) -> None:
    done_ms = to_ms(NOW - ago)
    make_event(job, outcome, attempt=1, due_ms=done_ms - late_ms, reserved_ms=done_ms, done_ms=done_ms)


# -- numbers -------------------------------------------------------------------------------


def test_due_jobs_are_bars_per_minute_and_per_hour(admin_client):
    make_job("a", due=3 * MINUTE)
    make_job("b", due=3 * MINUTE)
    make_job("c", due=timedelta(hours=5))
    minutes = chart(admin_client, "minutes")
    assert minutes["series"][0]["values"] == [0, 0, 0, 2, *[0] * 56]
    assert minutes["labels"][3] == "00:03"
    hours = chart(admin_client, "hours")
    assert hours["series"][0]["values"] == [2, 0, 0, 0, 0, 1, *[0] * 18]
    assert hours["labels"][5] == "Tue 05:00"
    assert tiles(admin_client)["due"]["value"] == "2"
    assert tiles(admin_client)["due"]["notes"] == ["3 in the next 24 hours"]


def test_the_next_24_hours_have_no_fewer_jobs_than_the_next_hour_which_is_counted_more_often():
    older, newer = (Forecast(0, 60_000, (Bin(0, Count(due)),)) for due in (18, 19))
    (tile,) = due_tiles(newer, older)
    assert (tile["value"], tile["notes"]) == ("19", ["19 in the next 24 hours"])


def test_a_herd_is_marked_with_its_number_time_and_topics(admin_client):
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW, "due_at": NOW + 9 * 60 * MINUTE}
    Job.objects.bulk_create([Job(key=f"sale:{n}", **row) for n in range(1234)], batch_size=500)
    hours = chart(admin_client, "hours")
    assert hours["herds"] == [[9, "1,234"]]
    assert hours["news"] == [f"1,234 at Tue 09:00: {TOPIC} 1,234"]
    assert hours["remarks"] == {"9": f"{TOPIC} 1,234"}
    assert hours["summary"] == "1,234 fall due. The busiest time is Tue 09:00: 1,234."


def test_an_incomplete_count_is_marked():
    assert labels.number(Count(1234)) == "1,234"
    assert labels.number(Count(13_412, complete=False)) == "13,000+"
    assert labels.number(Count(40, complete=False)) == "40+"


def test_waiting_jobs_show_the_waiting_time_and_are_marked_if_it_is_too_long(admin_client):
    assert tiles(admin_client)["ready"]["level"] == "ok"
    make_job("a", State.READY, due=timedelta(seconds=10))
    cache.clear()
    ready = tiles(admin_client)["ready"]
    assert (ready["value"], ready["level"], ready["notes"]) == ("1", "warning", ["the oldest for 10 s"])
    make_job("b", State.READY, due=2 * MINUTE)
    cache.clear()
    assert tiles(admin_client)["ready"]["level"] == "error"


def test_waiting_jobs_of_a_paused_topic_are_not_marked_but_the_pause_is(admin_client):
    Topic.objects.filter(name=TOPIC).update(paused=True)
    make_job("a", State.READY, due=timedelta(hours=1))
    found = tiles(admin_client)
    assert found["ready"]["level"] == "ok"
    assert (found["paused"]["value"], found["paused"]["notes"]) == ("1", [TOPIC])


def test_jobs_that_wait_for_an_unavailable_target_are_not_said_to_be_on_time(admin_client):
    make_job("a", State.READY, due=timedelta(hours=1))
    Topic.objects.filter(name=TOPIC).update(held_since=NOW, held_until=NOW + MINUTE)
    ready = tiles(admin_client)["ready"]
    assert (ready["value"], ready["notes"]) == ("1", [])


def test_topics_without_a_handler_are_named(admin_client):
    make_job("a", State.READY, due=timedelta(seconds=1), topic="nobody.knows")
    ready = tiles(admin_client)["ready"]
    assert ready["level"] == "warning"
    assert "no handler for nobody.knows in this web process" in ready["notes"]


def test_the_tiles_of_the_last_hour(admin_client):
    job = make_job("a", State.FINISHED)
    for late_ms in (10, 20, 3000):
        finished(job, late_ms=late_ms)
    finished(job, Outcome.FAILED)
    finished(job, Outcome.DEAD, ago=5 * MINUTE)
    found = tiles(admin_client)
    assert found["finished"]["value"] == "3"
    assert (found["late"]["value"], found["late"]["notes"]) == ("3 s", ["p50 10 ms, the worst 3 s"])
    assert (found["wrong"]["value"], found["wrong"]["level"]) == ("2", "warning")  # two in five
    assert (found["died"]["value"], found["died"]["level"]) == ("1", "error")
    charts = numbers(admin_client)["charts"]
    assert [sum(each["values"]) for each in charts["ended"]["series"]] == [3, 0, 0]
    assert [sum(each["values"]) for each in charts["trouble"]["series"]] == [1, 0, 1]
    assert charts["late"]["series"][2]["values"][-2] == 3000
    assert charts["late"]["texts"][2][-2] == "3 s"


@pytest.mark.parametrize("others", [Outcome.SNOOZED, Outcome.RELEASED, Outcome.SKIPPED, Outcome.FINISHED])
def test_attempts_of_each_outcome_count_before_failures_are_marked_as_many(admin_client, others):
    job = make_job("a")
    finished(job, Outcome.FAILED)
    for _ in range(9):
        finished(job, others)
    assert tiles(admin_client)["wrong"]["level"] == ""


def test_an_attempt_that_was_taken_back_may_have_lost_its_worker(admin_client):
    finished(make_job("a"), Outcome.EXPIRED)
    assert tiles(admin_client)["wrong"]["notes"] == ["1 exceeded their TTR or lost their worker"]


def test_a_partly_counted_hour_says_which_part_is_counted(admin_client, monkeypatch):
    whole = last_hour.last_hour("default")
    short = whole._replace(complete=False, since_ms=whole.now_ms - 7 * last_hour.MINUTE_MS)
    monkeypatch.setattr(data.last_hour, "last_hour", lambda using: short)
    assert any("of the last 7 minutes" in note for note in tiles(admin_client)["finished"]["notes"])
    assert len(chart(admin_client, "ended")["labels"]) == 8


def test_the_mover_tile_shows_the_heartbeat(admin_client):
    assert tiles(admin_client)["mover"]["value"] == "none yet"
    for ago_s, value, level in ((3, "alive", "ok"), (300, "silent", "error")):
        cache.clear()
        MirrorMark.objects.update_or_create(pk=1, defaults={"heartbeat_at": NOW - timedelta(seconds=ago_s)})
        mover = tiles(admin_client)["mover"]
        assert (mover["value"], mover["level"]) == (value, level)


def test_the_beat_tile_shows_the_last_sweep_and_what_to_do(admin_client):
    assert tiles(admin_client)["beat"]["notes"][0] == "no worker has run the sweep yet"
    for ago_s, value, level in ((30, "alive", "ok"), (300, "silent", "error")):
        cache.clear()
        MirrorMark.objects.update_or_create(pk=1, defaults={"swept_at": NOW - timedelta(seconds=ago_s)})
        beat = tiles(admin_client)["beat"]
        assert (beat["value"], beat["level"]) == (value, level)
    assert beat["advice"]["text"].startswith("Start beat. ")


def test_each_tile_that_is_wrong_says_what_to_do_and_links_to_its_section_of_the_runbook(
    admin_client, settings, with_redis, redis_server, monkeypatch
):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RUNBOOK_URL": "https://wiki.example/runbook"}
    assert advice(admin_client) == {"mover": "workers", "beat": "beat"}
    make_job("a", State.READY, due=timedelta(seconds=1), topic="nobody.knows")
    assert advice(admin_client)["ready"] == "ready"
    job = make_job("b", State.READY, due=2 * MINUTE)
    finished(job, Outcome.DEAD, late_ms=600_000)
    finished(job, Outcome.FAILED, late_ms=600_000)
    Topic.objects.create(name="t", paused=True)
    row = {"topic": TOPIC, "body": {}, "cron": "0 9 * * *", "start_at": NOW}
    Schedule.objects.create(name="nightly", made_until=NOW - 2 * MINUTE, **row)
    redis_server.stop()
    assert advice(admin_client) == {
        "ready": "ready", "paused": "paused-topics", "late": "late-jobs", "wrong": "failed-attempts",
        "died": "dead-jobs", "mover": "workers", "beat": "beat", "mirror": "mirror", "schedules": "schedules",
    }  # fmt: skip


def advice(client: Client) -> dict[str, str]:
    """Return the section of the runbook to which each tile that is wrong links."""
    cache.clear()
    found = tiles(client)
    wrong = {name: tile["advice"] for name, tile in found.items() if tile["level"] in ("warning", "error")}
    assert wrong == {name: tile["advice"] for name, tile in found.items() if tile["advice"]}
    assert all(each["text"] and each["runbook"] == "Runbook" for each in wrong.values())
    return {name: each["url"].removeprefix("https://wiki.example/runbook#") for name, each in wrong.items()}


def test_without_an_address_of_the_runbook_its_path_is_shown(admin_client):
    assert tiles(admin_client)["beat"]["advice"] == {
        "text": "Start beat. If it runs, its messages do not arrive, or all processes of the workers are busy.",
        "runbook": "docs/howto/runbook.md#beat", "url": "",
    }  # fmt: skip


def test_a_tile_says_the_same_in_chinese_and_health_in_english(admin_client):
    headers = {"Accept-Language": "zh-hans"}
    chinese = {tile["name"]: tile for tile in admin_client.get(NUMBERS, headers=headers).json()["tiles"]}
    assert chinese["beat"]["advice"]["text"].startswith("请启动 beat")
    with translation.override("zh-hans"):
        [beat] = readiness.run(names=["beat"])
    assert beat.advice.startswith("Start beat. ")


def test_schedules_have_a_tile_only_if_something_is_wrong_with_them(admin_client):
    row = {"topic": TOPIC, "body": {}, "cron": "0 9 * * *", "start_at": NOW, "made_until": NOW + timedelta(days=1)}
    schedule = Schedule.objects.create(name="nightly", **row)
    Topic.objects.get_or_create(name="mail.send")
    assert "schedules" not in tiles(admin_client)
    schedule.problem = "The zone Mars/Base is unknown."
    schedule.ended = True
    schedule.save()
    cache.clear()
    tile = tiles(admin_client)["schedules"]
    assert (tile["value"], tile["level"], tile["notes"]) == ("stopped", "warning", ["nightly"])
    assert "schedules" in tiles(admin_client, topic=TOPIC)
    assert "schedules" not in tiles(admin_client, topic="mail.send"), "of another topic, which the viewer may not see"


def test_a_stopped_schedule_has_a_tile_however_many_others_there_are(admin_client):
    row = {"topic": TOPIC, "body": {}, "cron": "0 9 * * *", "start_at": NOW, "made_until": NOW + timedelta(days=1)}
    for number in range(25):
        Schedule.objects.create(name=f"daily-{number}", **row)
    Schedule.objects.create(name="nightly", problem="The zone Mars/Base is unknown.", ended=True, **row)
    assert tiles(admin_client)["schedules"]["notes"] == ["nightly"]


def test_one_job_one_minute_and_one_rebuild_are_told_in_the_singular(admin_client, monkeypatch):
    make_job("a", due=3 * MINUTE)
    status = health.health("default")._replace(mirror="up", checked=1, audit_age_ms=180_000, rebuilt=2)
    monkeypatch.setattr(data.health, "health", lambda using: status)
    whole = last_hour.last_hour("default")
    short = whole._replace(complete=False, since_ms=whole.now_ms - last_hour.MINUTE_MS)
    monkeypatch.setattr(data.last_hour, "last_hour", lambda using: short)
    found = tiles(admin_client)
    assert found["mirror"]["notes"] == ["agreed with the database on 1 job 3 min ago", "rebuilt 1 time"]
    assert "of the last minute only: too many events to count" in found["finished"]["notes"]
    assert chart(admin_client, "minutes")["summary"] == "1 falls due. The busiest time is 00:03: 1."


def test_the_mirror_tile_shows_the_result_of_the_audit(admin_client, with_redis):
    assert "not yet compared with the database" in tiles(admin_client)["mirror"]["notes"]
    same = {"at_ms": to_ms(NOW - 3 * MINUTE), "checked": 1200, "missing": 0, "ghosts": 0, "late": 0, "doubled": 0}
    for audit, level, note in (
        (same, "ok", "agreed with the database on 1,200 jobs 3 min ago"),
        (same | {"missing": 2}, "warning", "2 differences were repaired 3 min ago"),
        (same | {"checked": 0, "ghosts": 1}, "warning", "1 difference was repaired 3 min ago"),
        (same | {"at_ms": to_ms(NOW - 31 * MINUTE)}, "warning", "agreed with the database on 1,200 jobs 31 min ago"),
    ):
        cache.clear()
        MirrorMark.objects.update_or_create(pk=1, defaults={"audit": audit})
        mirror = tiles(admin_client)["mirror"]
        assert (mirror["value"], mirror["level"], mirror["notes"]) == ("up", level, [note])


def test_a_site_without_a_mirror_has_no_problem(admin_client):
    mirror = tiles(admin_client)["mirror"]
    assert (mirror["value"], mirror["level"]) == ("off", "")


def test_a_mirror_that_refuses_writes_is_a_problem(admin_client, with_redis, redis_server):
    with redis_server.full():
        mirror = tiles(admin_client)["mirror"]
    assert (mirror["value"], mirror["level"]) == ("read-only", "error")


def test_a_mirror_that_is_down_is_a_problem(admin_client, with_redis, redis_server):
    redis_server.stop()
    mirror = tiles(admin_client)["mirror"]
    assert (mirror["value"], mirror["level"]) == ("down", "error")


def test_a_failed_query_does_not_affect_the_other_numbers(admin_client, monkeypatch):
    def refused(*args: Any) -> Any:
        raise DatabaseError("canceling statement due to statement timeout")

    monkeypatch.setattr(data.forecast, "minutes", refused)
    found = numbers(admin_client)
    assert found["charts"]["minutes"] is None
    assert found["charts"]["hours"] is not None
    assert {tile["name"] for tile in found["tiles"]} >= {"ready", "finished", "mover", "mirror"}


def test_each_tile_links_to_its_jobs(admin_client):
    make_job("a", State.READY)
    for name in ("ready", "reserved", "dead"):
        page = admin_client.get(tiles(admin_client)[name]["url"])
        assert page.status_code == 200
        assert ("a" in [job.key for job in page.context["cl"].result_list]) == (name == "ready")


def test_times_are_in_the_time_zone_of_the_viewer(admin_client):
    make_job("a", due=timedelta(hours=5))
    admin_client.cookies["delaytasks_zone"] = "Asia/Kolkata"
    found = numbers(admin_client)
    assert found["at"] == "05:30:00"
    assert found["charts"]["minutes"]["labels"][0] == "05:30"


def test_the_board_can_be_limited_to_one_topic(admin_client):
    Topic.objects.create(name="mail.send")
    make_job("a", due=MINUTE)
    make_job("b", due=MINUTE, topic="mail.send")
    assert tiles(admin_client, topic="mail.send")["due"]["value"] == "1"
    assert tiles(admin_client)["due"]["value"] == "2"
    assert "<option selected>mail.send</option>" in admin_client.get(BOARD, {"topic": "mail.send"}).content.decode()
    for address in (BOARD, NUMBERS):
        assert admin_client.get(address, {"topic": "no.such"}).status_code == 404


def test_the_tiles_of_one_topic_link_to_its_jobs(admin_client):
    make_job("mine", State.DEAD)
    Topic.objects.create(name="mail.send")
    make_job("not mine", State.DEAD, topic="mail.send")
    for topic, listed in (("", {"mine", "not mine"}), (TOPIC, {"mine"})):
        dead = tiles(admin_client, **({"topic": topic} if topic else {}))["dead"]
        page = admin_client.get(dead["url"])
        assert {job.key for job in page.context["cl"].result_list} == listed
        assert dead["value"] == str(len(listed))


def test_the_tiles_say_if_there_are_more_topics_than_counted(admin_client, monkeypatch):
    monkeypatch.setattr(counts, "TOPICS", 3)
    for number in range(3):
        make_job(f"dead:{number}", State.DEAD, topic=f"t{number}")
    make_job("dead:9", State.DEAD, topic="z.last")
    found = tiles(admin_client)
    assert found["dead"]["value"] == "3+"
    assert found["dead"]["notes"] == ["t0 1, t1 1, t2 1", "counted for 3 topics only; there are more"]
    assert found["ready"]["notes"] == ["counted for 3 topics only; there are more"], "not: nothing is overdue"
    assert found["reserved"]["value"] == "0+"
    Job.objects.filter(topic__in=["t1", "z.last"]).delete()
    cache.clear()
    found = tiles(admin_client)
    assert (found["dead"]["value"], found["dead"]["notes"]) == ("2", ["t0 1, t2 1"])


# -- permissions -------------------------------------------------------------------------------


def test_users_who_may_view_jobs_may_view_the_board(staff):
    client = staff("delaytasks.view_job")
    assert client.get(BOARD).status_code == 200
    assert client.get(NUMBERS).status_code == 200


@pytest.mark.parametrize("address", [BOARD, NUMBERS])
def test_other_users_may_not_view_the_board(address, staff, client):
    assert staff("delaytasks.view_topic").get(address).status_code == 403
    assert client.get(address).status_code == 302  # to the login


def test_only_visible_topics_are_counted_and_named(staff):
    Topic.objects.create(name="secret.topic", visible_to=[999])
    Topic.objects.filter(name="secret.topic").update(paused=True)
    make_job("a", due=MINUTE)
    for n in range(60):
        make_job(f"b{n}", due=2 * MINUTE, topic="secret.topic")
    make_job("late", State.READY, topic="secret.topic")
    dead = make_job("dead", State.DEAD, topic="secret.topic")
    finished(dead, Outcome.DEAD)
    client = staff("delaytasks.view_job")
    text = client.get(NUMBERS).content.decode() + client.get(BOARD).content.decode()
    assert "secret.topic" not in text
    found = tiles(client)
    assert [found[name]["value"] for name in ("due", "ready", "dead", "died")] == ["1", "0", "0", "0"]
    assert "paused" not in found
    assert client.get(NUMBERS, {"topic": "secret.topic"}).status_code == 404


def test_cached_numbers_do_not_reveal_hidden_topics(admin_client, staff):
    Topic.objects.create(name="secret.topic", visible_to=[999])
    make_job("a", due=MINUTE, topic="secret.topic")
    assert tiles(admin_client)["due"]["value"] == "1"
    assert tiles(staff("delaytasks.view_job"))["due"]["value"] == "0"


def test_links_to_the_board_are_shown_to_permitted_users(staff):
    may, may_not = staff("delaytasks.view_job", "delaytasks.view_topic"), staff("delaytasks.view_topic")
    for address in ("/admin/", "/admin/delaytasks/", "/admin/delaytasks/topic/", "/admin/delaytasks/job/"):
        assert f'href="{BOARD}"' in may.get(address).content.decode()
    for address in ("/admin/", "/admin/delaytasks/", "/admin/delaytasks/topic/"):
        assert BOARD not in may_not.get(address).content.decode()


def test_tiles_link_only_to_lists_that_the_viewer_may_view(staff):
    Topic.objects.update(paused=True)
    row = {"topic": TOPIC, "body": {}, "cron": "0 9 * * *", "start_at": NOW, "made_until": NOW + timedelta(days=1)}
    Schedule.objects.create(name="nightly", problem="The zone Mars/Base is unknown.", ended=True, **row)
    client = staff("delaytasks.view_job", "delaytasks.view_schedule")
    links = {name: tile["url"] for name, tile in tiles(client).items() if tile["url"]}
    assert set(links) == {"ready", "reserved", "dead", "schedules"}, "and not of the paused topics"
    assert {client.get(url).status_code for url in links.values()} == {200}


# -- the page -----------------------------------------------------------------------------------


def test_the_page_has_no_inline_scripts_or_styles_and_loads_nothing_external(admin_client):
    page = admin_client.get(BOARD).content.decode()
    scripts = re.findall(r"<script\b[^>]*>", page)
    assert scripts
    assert all("src=" in script or 'type="application/json"' in script for script in scripts)
    page = page.replace('xmlns="http://www.w3.org/2000/svg"', "")  # Django's own icons
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|https?://", page)


def test_each_series_of_a_chart_has_a_colour(admin_client):
    make_job("a", due=MINUTE)
    style = Path(finders.find("delaytasks/board.css")).read_text(encoding="utf-8")
    names = {each["name"] for chart in numbers(admin_client)["charts"].values() for each in chart["series"]}
    assert [name for name in names if f".dt-c-{name} {{ color:" not in style] == []


def test_a_hostile_topic_name_is_escaped(admin_client):
    Topic.objects.create(name="<script>alert(1)</script>", paused=True)
    assert "<script>alert" not in admin_client.get(BOARD).content.decode()
    assert tiles(admin_client)["paused"]["notes"] == ["<script>alert(1)</script>"]  # the page sets it as text
    assert admin_client.get(NUMBERS)["Content-Type"] == "application/json"


def test_the_numbers_are_not_cached_by_proxies(admin_client):
    assert "no-store" in admin_client.get(NUMBERS)["Cache-Control"]


class OtherSite(admin.AdminSite):
    site_header = "Somebody else's admin"


other_site = OtherSite(name="other")
other_site.register(Job, JobAdmin)
other_site.register(Board, BoardAdmin)
board_site = OtherSite(name="board")
board_site.register(Board, BoardAdmin)
urlpatterns = [
    path("other/", other_site.urls),
    path("board/", board_site.urls),
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),  # for the header of the example's admin
]


@pytest.mark.urls(__name__)
def test_the_board_works_in_a_custom_admin_site(admin_client):
    page = admin_client.get("/other/delaytasks/board/")
    assert "Somebody else&#x27;s admin" in page.content.decode()
    config = json.loads(re.search(r'id="dt-board-config"[^>]*>(.*?)</script>', page.content.decode())[1])
    assert config["url"] == "/other/delaytasks/board/numbers/"
    Topic.objects.update(paused=True)
    found = {tile["name"]: tile for tile in admin_client.get(config["url"]).json()["tiles"]}
    assert found["ready"]["url"].startswith("/other/delaytasks/job/")
    assert found["paused"]["url"] == ""  # this site does not register topics


@pytest.mark.urls(__name__)
def test_on_a_site_without_the_list_of_jobs_no_tile_is_a_link(admin_client):
    found = admin_client.get("/board/delaytasks/board/numbers/").json()["tiles"]
    assert {tile["url"] for tile in found} == {""}


# -- queries ------------------------------------------------------------------------------


@pytest.mark.on_both
def test_the_number_of_queries_does_not_grow_with_the_data(admin_client):
    def query_count() -> int:
        cache.clear()
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(NUMBERS).status_code == 200
        return len(captured)

    finished(make_job("first", State.FINISHED))
    make_job("second", State.READY)
    before = query_count()
    for n in range(30):
        Topic.objects.create(name=f"t{n}")
        finished(make_job(f"a{n}", State.FINISHED, topic=f"t{n}"))
        make_job(f"b{n}", State.READY, topic=f"t{n}")
        make_job(f"c{n}", due=MINUTE, topic=f"t{n}")
    assert query_count() == before
    assert before <= 57


@pytest.mark.on_both
def test_a_refresh_of_the_board_needs_few_queries(admin_client):
    make_job("a", due=MINUTE)
    numbers(admin_client)
    with CaptureQueriesContext(connection) as captured:
        numbers(admin_client)
    assert len(captured) <= 4  # session, user and permissions


@pytest.mark.on_both
def test_the_page_without_its_numbers_counts_nothing(admin_client):
    with CaptureQueriesContext(connection) as captured:
        admin_client.get(BOARD)
    assert not any("delaytasks_job" in query["sql"] for query in captured.captured_queries)


def test_the_page_shows_the_time_of_the_database(admin_client, db_clock):
    db_clock.advance(seconds=90)
    assert numbers(admin_client)["at"] == from_ms(db_clock.now_ms).strftime("%H:%M:%S")


def test_the_board_explains_its_words(admin_client):
    page = admin_client.get("/admin/delaytasks/board/").content.decode()
    words = re.findall(r"<dt>([^<]+)</dt><dd>[^<]+</dd>", page)
    assert {"Dead", "TTR", "Mover", "Beat", "Mirror"} <= set(words)


def test_a_topic_that_is_forwarded_by_its_row_does_not_lack_a_handler(admin_client):
    target = {"kind": "celery", "task": "shop.tasks.close", "format": "json", "source": "/", "timeout": 10}
    Topic.objects.create(name="order.remind", target=target)
    make_job("a", State.READY, due=timedelta(seconds=1), topic="order.remind")
    ready = tiles(admin_client)["ready"]
    assert (ready["level"], ready["notes"]) == ("ok", ["the oldest for 1 s"])
