"""A consumer is killed while it holds a job, or its web process is killed."""

import subprocess
import sys
import time

import pytest

from delaytasks import schedule
from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from tests.support.installation import ROOT
from tests.support.servers import die_with_parent

from ..support.http_client import Api
from .conftest import EVERYTHING

TTR_SECONDS = 3


@pytest.fixture
def holder(here, make_token, topic):
    """A consumer process that waits for one job."""
    secret = make_token({topic: EVERYTHING}, name="holder")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.lease_holder", str(here.port), secret, topic],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(),
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_job_of_a_killed_consumer_is_reserved_by_another_after_its_ttr(api, topic, holder):
    job = schedule(topic, key="a", delay=0, ttr=TTR_SECONDS)
    assert holder.stdout.readline() == "1\n"
    assert Job.objects.get().worker == "holder/holder"
    holder.kill()
    begun = time.monotonic()

    (got,) = api.reserve(topic, wait_seconds=30)
    assert (got["id"], got["attempt"], got["failures"]) == (job.id, 2, 1)
    assert time.monotonic() - begun < TTR_SECONDS + 2
    assert api.post(f"jobs/{job.id}/finish/", {"attempt": 2}).status == 200
    first, second = JobEvent.objects.filter(job=job, attempt__gt=0).order_by("id")
    assert (first.outcome, first.worker, second.outcome) == ("expired", "holder/holder", "finished")
    assert second.reserved_ms - first.reserved_ms >= TTR_SECONDS * 1000


def test_killed_web_process_loses_no_job_and_consumers_continue_with_the_next(fresh_world, api, topic):
    held = schedule(topic, key="held", delay=0, ttr=60)
    (got,) = api.reserve(topic, wait_seconds=10)
    fresh_world.processes[-1].kill()
    waiting = schedule(topic, key="waiting", delay=0)
    fresh_world.start_web()
    api = Api(fresh_world.port, api.token)

    assert [job["id"] for job in api.reserve(topic, wait_seconds=10)] == [waiting.id]
    assert api.post(f"jobs/{held.id}/finish/", {"attempt": got["attempt"]}).status == 200
    assert Job.objects.get(pk=held.id).state == State.FINISHED
