"""The mirror on a Redis Cluster: each bucket is one slot, the buckets lie on several masters."""

from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from delaytasks import audit, cancel, mirror, reschedule, schedule, schedule_many
from delaytasks.places import Call
from tests.cluster import SLOTS, Cluster
from tests.servers import RedisServer, wait_until

pytestmark = [
    pytest.mark.only_on("sqlite"),
    pytest.mark.xdist_group("cluster"),
]
on_the_mirror = pytest.mark.parametrize("places", ["mirror"], indirect=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    """Three masters without replicas."""
    with Cluster() as cluster:
        yield cluster.servers


@pytest.fixture
def with_redis(_nobody_listens, cluster, settings) -> Iterator[dict]:
    """In place of the single Redis: the same tests' engine, on the cluster."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": cluster[0].url(), "REDIS_CLUSTER": True}
    yield settings.DELAYTASKS
    mirror.connect().close()
    mirror._mirror.cache_clear()
    for server in cluster:
        server.flush()


def test_the_buckets_lie_on_more_than_one_master(with_redis):
    slots = {key_slot(mirror.connect().keys.due(bucket).encode()) for bucket in range(4)}
    assert len(slots) == 4
    assert len({slot * 3 // SLOTS for slot in slots}) > 1


def test_the_keys_of_a_bucket_share_its_slot(with_redis):
    keys = mirror.connect().keys
    for bucket in range(4):
        own = [
            keys.due(bucket),
            keys.ready(bucket, "t"),
            keys.topics(bucket),
            keys.aside(bucket),
            keys.counters(bucket),
        ]
        assert len({key_slot(key.encode()) for key in own}) == 1


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
def test_one_lost_master_is_noticed_and_its_buckets_are_filled_again(stage, cluster):
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
def test_a_mover_on_a_cluster_is_told_of_an_earlier_head(stage, cluster):
    stage.recorder("t")
    listener = mirror.connect().listen()
    listener.wait(1)
    wait_until(lambda: any(_listens(server) for server in cluster), seconds=10, what="the subscription")
    schedule("t", key="a", delay=60)
    wait_until(lambda: _heard(listener), seconds=10, what="the notification")
    listener.close()


def _listens(server: RedisServer) -> bool:
    """Whether somebody is subscribed to the mirror's channel at this node."""
    with server.client() as client:
        return client.pubsub_numsub(mirror.connect().keys.channel)[0][1] > 0


def _heard(listener) -> bool:
    message = listener._pubsub.get_message(timeout=0.1)
    return message is not None and message["type"] == "message"


@on_the_mirror
def test_run_slots_and_lingering_work_on_a_cluster(stage, db_clock):
    found, now_ms = mirror.connect(), db_clock.now_ms
    assert found.take_slot("t", "one", now_ms, now_ms + 1000, 1)
    assert not found.take_slot("t", "two", now_ms, now_ms + 1000, 1)
    assert found.call_runner("t", "crew", now_ms, 1) is Call.BUSY
    found.free_slot("t", "one")
    assert found.call_runner("t", "crew", now_ms, 1) is Call.RING
    assert found.linger("crew", "one", now_ms, 20) is None
    assert set(found.eviction_policies().values()) == {"noeviction"}
