"""The mirror on a Redis Cluster: each bucket is one slot, and the buckets lie on several masters."""

from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from delaytasks import cancel, mirror, reschedule, schedule, schedule_many
from delaytasks.maintenance import audit
from delaytasks.mirror.base import CallResult
from delaytasks.mirror.redis.lock import LockLost
from tests.support.redis_cluster import SLOTS, Cluster
from tests.support.servers import RedisServer, wait_until

pytestmark = [
    pytest.mark.only_on("sqlite"),
    pytest.mark.xdist_group("cluster"),
]
on_the_mirror = pytest.mark.parametrize("due_index", ["mirror"], indirect=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    """Three masters without replicas."""
    with Cluster() as cluster:
        yield cluster.servers


@pytest.fixture
def with_redis(_no_listener, cluster, settings) -> Iterator[dict]:
    """The cluster in place of the single Redis."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": cluster[0].url(), "REDIS_CLUSTER": True}
    yield settings.DELAYTASKS
    mirror.connect().close()
    mirror._mirrors.clear()
    for server in cluster:
        server.flush()


def test_the_buckets_lie_on_more_than_one_master(with_redis):
    slots = {key_slot(mirror.connect().keys.due(bucket).encode()) for bucket in range(4)}
    assert len(slots) == 4
    assert len({slot * 3 // SLOTS for slot in slots}) > 1


def test_the_keys_of_a_bucket_share_its_slot(with_redis):
    keys = mirror.connect().keys
    for bucket in range(4):
        bucket_keys = [
            keys.due(bucket),
            keys.ready(bucket, "t"),
            keys.topics(bucket),
            keys.set_aside(bucket),
            keys.counters(bucket),
        ]
        assert len({key_slot(key.encode()) for key in bucket_keys}) == 1


@on_the_mirror
def test_jobs_are_run_cancelled_and_moved_on_a_cluster(stage, db_clock):
    keys = stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": n % 5} for n in range(40))
    cancel("t", key="k7")
    reschedule("t", "k8", delay=60)
    db_clock.advance(seconds=10)
    stage.go(rounds=50)
    assert sorted(keys) == sorted(f"k{n}" for n in range(40) if n not in (7, 8))
    assert mirror.connect().due_count() == 1


@on_the_mirror
def test_lost_masters_are_noticed_and_their_buckets_rebuilt(stage, cluster):
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 60} for n in range(40))
    cluster[2].flush()
    cluster[1].flush()
    assert mirror.connect().due_count() < 40
    stage.guard()
    assert mirror.connect().due_count() == 40
    assert len(mirror.connect().masters()) == 3
    assert audit.audit()["missing"] == 0


@on_the_mirror
def test_a_mover_on_a_cluster_is_notified_of_an_earlier_due_time(stage, cluster):
    stage.recorder("t")
    listener = mirror.connect().listen()
    listener.wait(1)
    wait_until(lambda: any(_has_subscriber(server) for server in cluster), seconds=10, what="the subscription")
    schedule("t", key="a", delay=60)
    wait_until(lambda: _has_message(listener), seconds=10, what="the notification")
    listener.close()


def _has_subscriber(server: RedisServer) -> bool:
    """Whether this node has a subscriber to the mirror's channel."""
    with server.client() as client:
        return client.pubsub_numsub(mirror.connect().keys.channel)[0][1] > 0


def _has_message(listener) -> bool:
    message = listener._pubsub.get_message(timeout=0.1)
    return message is not None and message["type"] == "message"


@on_the_mirror
def test_run_slots_and_waiting_runners_work_on_a_cluster(stage, db_clock):
    index, now_ms = mirror.connect(), db_clock.now_ms
    assert index.take_slot("t", "one", now_ms, now_ms + 1000, 1)
    assert not index.take_slot("t", "two", now_ms, now_ms + 1000, 1)
    assert index.call_runner("t", "runners", now_ms, 1) is CallResult.BUSY
    index.free_slot("t", "one")
    assert index.call_runner("t", "runners", now_ms, 1) is CallResult.SEND
    assert index.wait_for_ready("runners", "one", now_ms, 20) is None
    assert set(index.eviction_policies().values()) == {"noeviction"}


@on_the_mirror
def test_one_full_master_of_a_cluster_is_found(stage, cluster):
    with cluster[1].full():
        assert "used memory > 'maxmemory'" in mirror.connect().refusal()
    assert mirror.connect().refusal() == ""


@on_the_mirror
def test_only_the_holder_extends_and_releases_a_lock_on_a_cluster(stage):
    index = mirror.connect()
    stalled, successor = index.lock("rebuild", 60_000), index.lock("rebuild", 60_000)
    assert stalled.acquire()
    stalled.extend()
    assert not successor.acquire()
    index._redis.client.delete(index.keys.lock("rebuild"))  # it expires
    assert successor.acquire()
    with pytest.raises(LockLost):
        stalled.extend()
    stalled.release()
    successor.extend()
    successor.release()
    assert not index._redis.client.exists(index.keys.lock("rebuild"))
