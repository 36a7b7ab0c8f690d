"""A Redis Cluster of three masters without replicas, one of which is killed; tests/torture has those with replicas."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from delaytasks import mirror, schedule_many
from delaytasks.maintenance import audit
from tests.support.redis_cluster import Cluster
from tests.support.servers import wait_until

pytestmark = [pytest.mark.tools, pytest.mark.only_on("sqlite"), pytest.mark.xdist_group("cluster")]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(cluster_node_timeout="1000") as cluster:
        yield cluster


@pytest.fixture
def with_redis(cluster: Cluster, settings: Any) -> Iterator[dict[str, Any]]:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": cluster.url(), "REDIS_CLUSTER": True}
    yield settings.DELAYTASKS
    mirror.connect().close()
    mirror._mirrors.clear()


@pytest.mark.parametrize("due_index", ["mirror"], indirect=True)
def test_while_a_master_is_down_jobs_run_and_afterwards_the_mirror_is_complete(stage, cluster, db_clock) -> None:
    keys = stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 5 if n < 40 else 60} for n in range(80))
    killed = cluster.servers[2]
    killed.stop(signal.SIGKILL)
    schedule_many({"topic": "t", "key": f"meanwhile{n}", "delay": 5} for n in range(40))
    db_clock.advance(seconds=10)
    stage.go(rounds=50)
    assert sorted(keys) == sorted([f"k{n}" for n in range(40)] + [f"meanwhile{n}" for n in range(40)])

    killed.start()
    cluster.await_agreement()
    wait_until(lambda: not mirror.connect().down and stage.guard() is not None, seconds=20, what="the circuit to close")
    wait_until(lambda: stage.guard() == 0 and audit.audit()["missing"] == 0, seconds=20, what="a complete mirror")
    stage.go(rounds=50)  # entries of jobs that ran meanwhile, which nobody could remove: the claim refuses them
    assert mirror.connect().due_count() == 40
    assert len(keys) == len(set(keys)) == 80
    assert audit.audit()["ghosts"] == 0
