"""The queue protocol and REST over real HTTP, from add to finish."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from delaytasks import schedule_many
from delaytasks.models import Job, JobEvent
from delaytasks.states import State

from ..support.http_client import Api
from .conftest import EVERYTHING

pytestmark = pytest.mark.on_both


def add(api, topic, key, *, delay=0, ttr=30, body=None):
    answer = api.command("add", topic=topic, id=key, delay=delay, TTR=ttr, body=body if body is not None else {})
    assert answer["success"], answer
    return answer


def pop(api, topic, **fields):
    """Pop a job, waiting for it, and return the envelope."""
    answer = api.command("pop", topic=topic, wait=20, **fields)
    assert answer["success"], answer
    assert answer["value"] is not None, "nothing was there in 20 s"
    return answer


def lengthen_ttr(topic):
    """Set the TTR of later attempts to a minute; the current lease does not change."""
    Job.objects.filter(topic=topic).update(ttr_ms=60_000)


def test_a_job_is_added_popped_once_due_and_finished(api, topic):
    begun = time.time()
    add(api, topic, f"{topic}-1", delay=2, ttr=30, body={"order": 1})
    assert api.command("pop", topic=topic) | {"success": True, "id": "", "value": None} == api.command(
        "pop", topic=topic
    )  # an empty queue is no failure

    popped = pop(api, topic)
    assert time.time() - begun >= 2, "it came early"
    assert (popped["id"], popped["value"], popped["attempt"]) == (f"{topic}-1", {"order": 1}, 1)
    assert api.command("pop", topic=topic)["value"] is None  # it is held

    assert api.command("finish", id=f"{topic}-1")["success"]
    again = api.command("finish", id=f"{topic}-1")
    assert not again["success"]
    assert again["error"]
    job = Job.objects.get(topic=topic)
    assert job.state == State.FINISHED
    assert list(job.events.order_by("id").values_list("outcome", flat=True))[-1] == "finished"


def test_job_deleted_before_its_due_time_is_never_popped(api, topic):
    add(api, topic, f"{topic}-1", delay=0.5)

    answer = api.command("delete", id=f"{topic}-1")
    assert answer["success"]
    assert answer["value"] == "cancelled"
    assert api.command("pop", topic=topic, wait=1)["value"] is None


def test_a_job_that_is_not_finished_within_its_ttr_is_popped_again_and_the_late_finish_refused(api, topic):
    add(api, topic, f"{topic}-1", ttr=1)
    first = pop(api, topic)
    begun = time.monotonic()

    lengthen_ttr(topic)
    second = pop(api, topic)  # waits until the first attempt's time is over
    assert time.monotonic() - begun < 1 + 8
    assert (first["attempt"], second["attempt"]) == (1, 2)

    late = api.command("finish", id=f"{topic}-1", attempt=1)
    assert not late["success"]
    assert late["error"]
    assert Job.objects.get(topic=topic).state == State.RESERVED
    assert api.command("finish", id=f"{topic}-1", attempt=2)["success"]
    outcomes = JobEvent.objects.filter(job__topic=topic).order_by("id").values_list("outcome", "attempt")
    assert [pair for pair in outcomes if pair[1]] == [("expired", 1), ("finished", 2)]


def test_touching_in_time_keeps_the_job_beyond_its_first_ttr(api, topic):
    add(api, topic, f"{topic}-1", ttr=3)
    popped = pop(api, topic)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        assert api.command("touch", id=f"{topic}-1", attempt=popped["attempt"])["success"]
        assert api.command("pop", topic=topic, wait=0.3)["value"] is None

    assert api.command("finish", id=f"{topic}-1", attempt=1)["success"]


def test_attempt_is_the_fencing_token_in_rest_too(api, topic):
    made = api.post("jobs/", {"topic": topic, "key": "a", "delay_seconds": 0, "ttr_seconds": 1})
    assert made.status == 201, made
    (first,) = api.reserve(topic, wait_seconds=20)
    lengthen_ttr(topic)
    (second,) = api.reserve(topic, wait_seconds=20)
    assert (first["id"], first["attempt"], second["attempt"]) == (second["id"], 1, 2)

    for verb in ("finish", "touch", "release", "bury"):
        late = api.post(f"jobs/{first['id']}/{verb}/", {"attempt": 1})
        assert late.status == 409, (verb, late)
        assert late.headers["content-type"] == "application/problem+json"
    finished = api.post(f"jobs/{first['id']}/finish/", {"attempt": 2})
    assert finished.status == 200, finished
    assert api.get(f"jobs/{first['id']}/").data["state"] == "finished"


def test_concurrent_pops_and_deletes_have_one_winner_per_job(here, topic, make_token):
    keys = [f"{topic}-{number}" for number in range(120)]
    schedule_many({"topic": topic, "key": key, "delay": 0.2, "ttr": 120} for key in keys)
    apis = [Api(here.port, make_token({topic: EVERYTHING})) for _ in range(6)]

    def deletes(api, third):
        """The keys for which it was told that its delete was in time."""
        return [key for key in keys[third::3] if api.command("delete", id=key)["value"] == "cancelled"]

    def pops(api):
        taken = []
        while (found := api.command("pop", topic=topic, wait=2))["value"] is not None:
            taken.append(found["id"])
        return taken

    with ThreadPoolExecutor(len(apis)) as pool:
        popping = [pool.submit(pops, each) for each in apis[:3]]
        deleting = [pool.submit(deletes, each, third) for third, each in enumerate(apis[3:])]
    popped = [key for future in popping for key in future.result()]
    cancelled = [key for future in deleting for key in future.result()]

    assert len(popped) == len(set(popped)), "a job was handed out twice"
    assert sorted(popped + cancelled) == sorted(keys), "a job had two winners, or none"
    assert popped, "the deletes were done before the first pop: nothing was raced"
    assert cancelled, "the pops were done before the first delete: nothing was raced"
    states = dict(Job.objects.filter(topic=topic).values_list("key", "state"))
    assert {key for key, state in states.items() if state == State.CANCELLED} == set(cancelled)
    assert {key for key, state in states.items() if state == State.RESERVED} == set(popped)
