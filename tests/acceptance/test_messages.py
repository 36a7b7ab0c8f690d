"""The number of Celery messages that wait for a worker stays small, however long its processes are busy."""

import json
import time

from redis import Redis

from delaytasks import schedule_many
from delaytasks.states import State

from ..support.installation import World

TOPIC = "quick"
JOBS, EACH_SECONDS = 1_000, 0.006  # due one after the other; each process is busy for a part of the time
SEND_AGAIN = 8  # a message is sent again after 0.1, 0.2, 0.4, 0.8 s and each second, and taken after a second


def test_messages_do_not_pile_up_while_jobs_keep_coming(world: World) -> None:
    """A runner that was woken, or whose message is not the last one, leaves messages in the queue."""
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"RUN_BUDGET_SECONDS": 1})
    world.start_all(concurrency=2)
    begin = time.time() + 1
    schedule_many({"topic": TOPIC, "key": str(n), "delay": begin + n * EACH_SECONDS - time.time()} for n in range(JOBS))
    with Redis.from_url(world.redis.url()) as client:
        world.until(lambda: world.ended(JOBS, state=State.FINISHED), seconds=30, what="the jobs to finish")
        assert client.llen("celery") <= SEND_AGAIN
