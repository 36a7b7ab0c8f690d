"""A busy worker leaves messages in the broker, for workers with idle processes."""

import pytest
import redis
from celery import Celery

from delaytasks import schedule

from ..support.installation import World

MESSAGES = 3


def blocked(client: redis.Redis) -> bool:
    """Return whether a client waits for a message of the broker's queue."""
    return any("b" in each["flags"] for each in client.client_list())


def stays_away(app: Celery, client: redis.Redis) -> bool:
    """Return whether nothing waits for a message before and after the worker's loop has come around."""
    return not blocked(client) and bool(app.control.ping(timeout=60, limit=1)) and not blocked(client)


@pytest.mark.only_on("postgresql")
def test_a_busy_worker_takes_no_message_that_it_cannot_begin(world: World) -> None:
    world.start_worker("busy", concurrency=1)
    world.await_workers()
    schedule("hangs-once", "a", delay=0)
    world.until(lambda: world.mark("hangs-once", "a", 1), seconds=20, what="the worker to be busy")
    with Celery(broker=world.redis.url(), set_as_current=False) as app, world.redis.client() as client:
        # A worker waits for a message a second at a time; the wait that began while it was idle takes one more.
        world.until(lambda: stays_away(app, client), seconds=10, what="the worker to wait for no message")
        for number in range(MESSAGES):
            app.send_task("acceptance.project_task", [f"n{number}"], ignore_result=True)
        for _ in range(2):  # so the worker would have looked for messages since then
            assert app.control.ping(timeout=60, limit=1)
        waiting = [message for message in client.lrange("celery", 0, -1) if "acceptance.project_task" in str(message)]
        assert len(waiting) == MESSAGES  # beside them perhaps a second message about the busy job
        world.start_worker("idle", concurrency=1)
        world.until(lambda: len(list(world.directory.glob("n*.json"))) == MESSAGES, seconds=20, what="the idle worker")
