"""The mirror is updated on commit, and relaxed commits do not wait for the disk."""

from typing import Any

import pytest
from django.db import connection, transaction

from delaytasks import handler, handlers, schedule
from delaytasks.db import transitions

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def topic() -> Any:
    yield "committing"
    handlers.unregister("committing")


def test_a_job_is_added_to_the_mirror_on_commit_and_not_before(mirror, topic) -> None:
    handler(topic)(lambda job: None)
    with transaction.atomic():
        job = schedule(topic, key="k", delay=60)
        assert mirror.scores([(job.pk, topic)]) == [(None, None)]
    assert mirror.scores([(job.pk, topic)]) == [(job.due_ms, None)]


def test_a_job_that_is_rolled_back_is_never_added_to_the_mirror(mirror, topic) -> None:
    handler(topic)(lambda job: None)
    with transaction.atomic():
        job = schedule(topic, key="k", delay=60)
        transaction.set_rollback(True)
    assert mirror.scores([(job.pk, topic)]) == [(None, None)]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(("relaxed", "waits"), [(True, "off"), (False, "on")])
def test_only_a_topic_with_relaxed_commit_finishes_without_waiting_for_the_disk(
    stage, topic, monkeypatch, relaxed: bool, waits: str
) -> None:
    """Only the finish does not wait: the claim before it and later statements of the connection do."""
    seen: dict[str, str] = {}

    def recording(name: str) -> Any:
        real = getattr(transitions, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = real(*args, **kwargs)
            seen[name] = setting()
            return answer

        return call

    for name in ("claim_first", "end_if_held"):
        monkeypatch.setattr(transitions, name, recording(name))
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
