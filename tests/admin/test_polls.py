"""On the page of a job: its expiry, the polls of a ladder, and how a poll gave up."""

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest

from delaytasks import handler, handlers, poll
from delaytasks.models import Job
from delaytasks.outcomes import ErrorCode
from delaytasks.states import Outcome, State

from .conftest import NOW, make_event, make_job

POLLED = "test.polled"


@pytest.fixture(autouse=True)
def _polled() -> Iterator[None]:
    poll(POLLED, every=["10m"], until=timedelta(hours=3))(lambda job: False)
    yield
    handlers.unregister(POLLED)


def field(client: Any, job: Job, name: str) -> str | None:
    """Return the text of a field on the job's page, or None if the page does not have it."""
    page = client.get(f"/admin/delaytasks/job/{job.pk}/change/").content.decode()
    found = re.search(rf'field-{name}\b.*?class="readonly">(.*?)</div>', page, re.DOTALL)
    return None if found is None else re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", found[1]))).strip()


def test_the_page_of_a_poll_shows_its_polls_and_when_it_gives_up(admin_client: Any) -> None:
    job = make_job("a", topic=POLLED, polls=4, created_at=NOW - timedelta(hours=1))
    text = field(admin_client, job, "polled")
    assert text is not None
    assert text.startswith("4 gives up:")
    assert f"{NOW + timedelta(hours=2):%H:%M}" in text
    Job.objects.update(replaced_at=NOW)
    assert f"{NOW + timedelta(hours=3):%H:%M}" in (field(admin_client, job, "polled") or "")


def test_the_page_of_a_poll_that_gave_up_says_so(admin_client: Any) -> None:
    job = make_job("a", State.FINISHED, topic=POLLED, error=ErrorCode.GAVE_UP)
    make_event(job, Outcome.FINISHED, error=ErrorCode.GAVE_UP)
    page = admin_client.get(f"/admin/delaytasks/job/{job.pk}/change/").content.decode()
    assert page.count("Gave up: it was not settled by its deadline.") >= 2, "the job and its event"


@pytest.mark.parametrize(("own", "of_handler", "shown"), [(90_000, None, 90), (None, 60, 60), (90_000, 60, 90)])
def test_the_page_shows_when_a_job_expires(admin_client: Any, own: int | None, of_handler: Any, shown: int) -> None:
    handler("test.expires", expires=of_handler)(lambda job: None)
    try:
        job = make_job("a", topic="test.expires", expires_ms=own)
        assert f"{job.due_at + timedelta(seconds=shown):%H:%M:%S}" in (field(admin_client, job, "expires") or "")
    finally:
        handlers.unregister("test.expires")


def test_the_page_shows_the_priority(admin_client: Any) -> None:
    assert field(admin_client, make_job("a", priority=7), "priority") == "7"


def test_other_jobs_have_neither_field(admin_client: Any) -> None:
    job = make_job("a")
    assert (field(admin_client, job, "expires"), field(admin_client, job, "polled")) == (None, None)
