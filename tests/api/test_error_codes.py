"""Errors over HTTP: a message for people and a code for programs."""

from typing import Any

import pytest

from delaytasks.db import transitions
from delaytasks.db.transitions import Event
from delaytasks.models import Job
from delaytasks.states import Outcome

from .rest_client import Rest

STORED = [
    ("Its TTR was over and nobody had finished it.", "Timed out: the attempt exceeded its TTR.", "timed_out"),
    ("delaytasks:timed_out", "Timed out: the attempt exceeded its TTR.", "timed_out"),
    ("Buried by its consumer.", "Buried by its consumer.", "buried"),
    ("delaytasks:buried", "Buried by its consumer.", "buried"),
    ("ValueError: no", "ValueError: no", None),
    ("", "", None),
]


@pytest.mark.parametrize(("stored", "sentence", "code"), STORED)
def test_error_has_a_message_and_a_code(rest: Rest, stored: str, sentence: str, code: str | None) -> None:
    job_id = rest.make()["id"]
    Job.objects.filter(pk=job_id).update(error=stored)
    transitions.record("default", [Event(job_id, Outcome.EXPIRED, 1, 1, 2, error=stored)])
    shown = rest.get(f"jobs/{job_id}/")
    (listed,) = rest.get("jobs/")["results"]
    for each in (shown, shown["events"][-1], listed):
        assert (each["error"], each["error_code"]) == (sentence, code)


@pytest.mark.parametrize(("stored", "sentence", "code"), STORED)
def test_peek_shows_the_error_message(rest: Rest, stored: str, sentence: str, code: str | None) -> None:
    job: dict[str, Any] = rest.make()
    Job.objects.filter(pk=job["id"]).update(error=stored)
    assert rest.post("queue/", {"command": "peek", "id": job["key"]})["value"]["error"] == sentence


def test_job_buried_without_a_reason_has_a_default_message(rest: Rest) -> None:
    rest.make()
    (held,) = rest.take()
    rest.post(f"jobs/{held['id']}/bury/", {"attempt": held["attempt"]})
    shown = rest.get(f"jobs/{held['id']}/")
    assert (shown["error"], shown["error_code"]) == ("Buried by its consumer.", "buried")
    assert Job.objects.get().error == "delaytasks:buried"
