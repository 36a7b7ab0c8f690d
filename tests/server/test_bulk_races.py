"""Bulk requests of several clients race with cancels and with the retention: each answer is true, and none is a 5xx."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from delaytasks.maintenance import retention
from delaytasks.maintenance.retention import Retention
from delaytasks.models import Job
from tests.support.http_client import Answer, Api
from tests.support.installation import World

CLIENTS, ROUNDS, KEYS = 4, 25, [f"order:{n}" for n in range(20)]


@contextmanager
def repeated(do: Any) -> Iterator[None]:
    """Call do() in a thread again and again until the block ends. An exception fails the test."""
    stop, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not stop.is_set():
                do()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not errors
    assert not thread.is_alive()


def test_bulk_adds_that_keep_are_answered_truly_while_jobs_are_cancelled_and_pruned(
    here: World, api: Api, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PAUSE_PER_SECOND", 0)
    counts: Counter[str] = Counter()
    keys = itertools.cycle(KEYS)

    def cancel() -> None:
        answer = api.post("queue/", {"command": "delete", "id": next(keys), "topic": topic})
        assert answer.status == 200, answer
        counts["cancelled"] += answer.data["success"]

    def prune() -> None:
        for batch in retention.prune("default", Retention({"*": {"ended": timedelta(0)}}, topic)):
            counts["pruned"] += batch.deleted

    def add(client: int) -> list[Answer]:
        own = KEYS[client:] + KEYS[:client]  # each client in another order
        jobs = [{"topic": topic, "key": key, "delay_seconds": 600} for key in own]
        return [api.post("jobs/", {"jobs": jobs, "on_conflict": "keep"}) for _ in range(ROUNDS)]

    with repeated(cancel), repeated(prune), ThreadPoolExecutor(CLIENTS) as clients:
        answers = [answer for each in clients.map(add, range(CLIENTS)) for answer in each]

    assert {answer.status for answer in answers} <= {200, 201}, answers
    for answer in answers:
        data = answer.data
        assert (data["created"] + data["kept"], data["replaced"]) == (len(KEYS), 0)
        assert (answer.status == 201) == (data["created"] > 0)
        assert sorted(job["key"] for job in data["jobs"]) == sorted(KEYS)
    key_of = {job["id"]: job["key"] for answer in answers for job in answer.data["jobs"]}
    for job in (job for answer in answers for job in answer.data["jobs"]):
        assert job["key"] == key_of[job["id"]]
    created = sum(answer.data["created"] for answer in answers)
    assert len(key_of) == created, "each job was created by one request, and each kept job had been created before"
    assert created == counts["cancelled"] + Job.objects.live().filter(topic=topic).count()
    assert created > len(KEYS), "jobs were cancelled, and created again"
    assert sum(answer.data["kept"] for answer in answers) > 0
    assert counts["pruned"] > 0
