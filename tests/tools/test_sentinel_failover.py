"""A Redis master is killed, and Sentinel promotes its replica, while jobs are scheduled."""

import signal
from typing import Any

import pytest

from delaytasks import mirror, schedule
from delaytasks.exceptions import MirrorDown
from tests.support.redis_sentinel import SERVICE, SentinelServer
from tests.support.servers import RedisServer, wait_until

pytestmark = [
    pytest.mark.tools,
    pytest.mark.only_on("sqlite"),
    pytest.mark.parametrize("due_index", ["mirror"], indirect=True),
]


def test_the_index_is_complete_after_a_replica_has_taken_over(stage: Any, db_clock: Any, settings: Any) -> None:
    keys = stage.recorder("t")
    with RedisServer() as master, RedisServer() as replica:
        follow(replica, master)
        with SentinelServer(master.port, down_after_ms=300) as sentinel:
            with sentinel_client(sentinel) as asked:
                wait_until(lambda: asked.sentinel_slaves(SERVICE), seconds=20, what="Sentinel to know the replica")
            url = f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}/0"
            settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": url}
            schedule("t", "before", delay=5)
            stage.guard()
            with master.client() as client:
                client.wait(1, 20_000)
            master.stop(signal.SIGKILL)
            schedule("t", "without a master", delay=5)
            with replica.client() as client:
                wait_until(lambda: client.role()[0] == "master", seconds=30, what="the replica to take over")
            wait_until(lambda: guarded(stage), seconds=20, what="the index to have both jobs")
            db_clock.advance(seconds=6)
            stage.go()
            assert sorted(keys) == ["before", "without a master"]
            mirror.connect().close()


def guarded(stage: Any) -> bool:
    """Let the guard look. Return whether the index has both jobs."""
    stage.guard()
    try:
        return mirror.connect().due_count() == 2
    except MirrorDown:
        return False


def follow(replica: RedisServer, master: RedisServer) -> None:
    with replica.client() as client:
        client.replicaof("127.0.0.1", str(master.port))
        wait_until(
            lambda: client.info("replication")["master_link_status"] == "up", seconds=20, what="the replica to follow"
        )


def sentinel_client(sentinel: SentinelServer) -> Any:
    from redis import Redis

    return Redis(port=sentinel.port, socket_timeout=5, decode_responses=True)
