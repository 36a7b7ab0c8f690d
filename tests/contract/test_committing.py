"""What a transaction's end decides: when the mirror hears of a promise, and which commits wait for the disk."""

from typing import Any

import pytest
from django.db import connection, transaction

from delaytasks import handler, schedule, statements, topics


@pytest.fixture
def topic() -> Any:
    yield "committing"
    topics.forget("committing")


def test_the_mirror_hears_of_a_promise_when_it_is_committed_and_not_before(mirror, topic) -> None:
    handler(topic)(lambda job: None)
    with transaction.atomic():
        job = schedule(topic, key="k", delay=60)
        assert mirror.scores([(job.pk, topic)]) == [(None, None)]
    assert mirror.scores([(job.pk, topic)]) == [(job.due_ms, None)]


def test_the_mirror_never_hears_of_a_promise_that_was_rolled_back(mirror, topic) -> None:
    handler(topic)(lambda job: None)
    with transaction.atomic():
        job = schedule(topic, key="k", delay=60)
        transaction.set_rollback(True)
    assert mirror.scores([(job.pk, topic)]) == [(None, None)]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(("relaxed", "waits"), [(True, "off"), (False, "on")])
def test_only_a_topic_that_asks_for_it_finishes_without_waiting_for_the_disk(
    stage, topic, monkeypatch, relaxed: bool, waits: str
) -> None:
    """And only its finish: the claim before it and what comes after on the connection wait."""
    seen: dict[str, str] = {}

    def noting(name: str) -> Any:
        real = getattr(statements, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = real(*args, **kwargs)
            seen[name] = setting()
            return answer

        return call

    for name in ("claim_due", "claim", "end_if_held"):
        monkeypatch.setattr(statements, name, noting(name))
    stage.handler(topic, relaxed_commit=relaxed)(lambda job: None)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
    try:
        schedule(topic, key="k", delay=0)
        stage.go()
        assert seen.pop("end_if_held") == waits
        assert set(seen.values()) == {"on"}
        assert setting() == "on"
    finally:
        connection.close()


def setting() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        return cursor.fetchone()[0]
