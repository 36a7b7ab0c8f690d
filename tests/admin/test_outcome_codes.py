"""Outcomes stored as sentences by earlier versions and as codes by this one look the same, in both languages."""

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from delaytasks.bulk import changes
from delaytasks.models import BulkChange
from delaytasks.states import Outcome, State
from tests.support.untranslated import in_chinese

from .conftest import TOPIC, make_event, make_job

JOBS, CHANGES = "/admin/delaytasks/job/", "/admin/delaytasks/bulkchange/"
# (stored, English, Chinese): from before the migration or an older worker, and from this version
ERRORS = [
    (stored, english, chinese)
    for former, code, english, chinese in (
        (
            "Its TTR was over and nobody had finished it.",
            "delaytasks:timed_out",
            "Timed out: the attempt exceeded its TTR.",
            "超时：本次执行超过了执行时限（TTR）。",
        ),
        ("Buried by its consumer.", "delaytasks:buried", "Buried by its consumer.", "被消费方判为死信。"),
    )
    for stored in (former, code)
]
RESULTS = [
    (stored, english, chinese)
    for word, code, chinese in (
        ("cancelled", "cancelled", "已取消"), ("already running", "running", "正在执行"),
        ("already finished", "already_finished", "此前已完成"),
        ("already cancelled", "already_cancelled", "此前已取消"),
        ("dead", "dead", "死信"), ("not dead", "not_dead", "不是死信"), ("made ready", "made_ready", "已设为就绪"),
        ("moved meanwhile", "moved", "其间已被改期"), ("already ready", "already_ready", "本来就已就绪"),
        ("its key is live again", "key_is_live", "同一个键已有未结束的任务"),
        ("no longer there", "not_found", "已不存在"), ("error: ValueError", "error:ValueError", None),
    )
    for stored, english in ((word, word), (code, word))
]  # fmt: skip


@pytest.fixture(params=["en", "zh"])
def reader(request: pytest.FixtureRequest, db: None) -> tuple[str, Client]:
    """A language, and a client that uses it."""
    user = User.objects.create_superuser("anna", password="x")
    client = in_chinese(user)
    if request.param == "en":
        client = Client()
        client.force_login(user)
    return request.param, client


def text_of(response: Any) -> str:
    assert response.status_code == 200
    content = response.content.decode().partition('id="content"')[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", content)).split())


@pytest.mark.parametrize(("stored", "english", "chinese"), ERRORS)
def test_the_stored_error_of_a_job_is_shown_in_both_languages(reader, stored, english, chinese):
    language, client = reader
    job = make_job("order:1", State.DEAD, error=stored)
    make_event(job, Outcome.EXPIRED, error=stored)
    text = english if language == "en" else chinese
    assert text in text_of(client.get(JOBS))
    page = text_of(client.get(f"{JOBS}{job.pk}/change/"))
    assert page.count(text) == 2, "the last error, and in the timeline"
    assert "delaytasks:" not in page


@pytest.mark.parametrize("stored", ["Who asked for this may not change jobs any more.", "delaytasks:not_allowed"])
def test_the_stored_error_of_a_bulk_change_is_shown_in_both_languages(reader, stored):
    language, client = reader
    change = changes.start("cancel", [1], by="anna")
    BulkChange.objects.update(state="failed", error=stored)
    page = text_of(client.get(f"{CHANGES}{change.pk}/change/"))
    assert ("The requester no longer has permission." if language == "en" else "发起人已不再拥有权限。") in page


@pytest.mark.parametrize(("stored", "english", "chinese"), RESULTS)
def test_the_stored_result_of_a_job_is_shown_in_both_languages(reader, stored, english, chinese):
    language, client = reader
    change = changes.start("cancel", [1, 2], by="anna")
    BulkChange.objects.update(outcomes={stored: 2}, samples={stored: [[1, TOPIC, "order:1"]]}, position=2, state="done")
    english = english.replace("error:", "failed:")
    text = english if language == "en" else chinese or "失败：ValueError"
    assert f"{text} 2" in text_of(client.get(CHANGES))
    (outcome,) = client.get(f"{CHANGES}{change.pk}/progress/").json()["outcomes"]
    assert (outcome["word"], outcome["count"], [job["text"] for job in outcome["jobs"]]) == (text, "2", ["order:1"])


def test_counts_of_two_versions_are_added_up(admin_client):
    change = changes.start("cancel", [1, 2, 3], by="anna")
    BulkChange.objects.update(
        outcomes={"already running": 1, "running": 1, "cancelled": 1}, position=3, state="done",
        samples={"already running": [[1, TOPIC, "a"]], "running": [[2, TOPIC, "b"]], "cancelled": [[3, TOPIC, "c"]]},
    )  # fmt: skip
    outcomes = admin_client.get(f"{CHANGES}{change.pk}/progress/").json()["outcomes"]
    lines = [(each["outcome"], each["word"], each["count"], {job["text"] for job in each["jobs"]}) for each in outcomes]
    assert lines == [("cancelled", "cancelled", "1", {"c"}), ("running", "already running", "2", {"a", "b"})]
