"""The mirror's Redis Cluster: failing masters and failover to replicas."""

import contextlib
import signal
from collections.abc import Iterator

from tests.support.redis_cluster import Cluster
from tests.support.servers import RedisServer

from ..environment import Arena
from . import fault

DOWN_SECONDS = 1
BEHIND_SECONDS = 2.0


@fault("a master of the Cluster is killed", uses="redis", arena="cluster")
def kill_master(arena: Arena) -> None:
    with _killed(arena.cluster, arena.cluster.masters()[0]):
        arena.hold(DOWN_SECONDS)


@fault("a master of the Cluster is killed and its replica lacks the last writes", uses="redis", arena="cluster")
def kill_master_ahead(arena: Arena) -> None:
    """Stop the replica and cut its link, so that later writes stay on the master."""
    master = arena.cluster.masters()[0]
    replica = arena.cluster.replica_of(master)
    assert replica.process is not None
    replica.process.send_signal(signal.SIGSTOP)
    try:
        with master.client() as client:
            client.client_kill_filter(_type="slave")  # redis-py's word for a replica
            written = client.info("replication")["master_repl_offset"]
            arena.hold(BEHIND_SECONDS)
            assert client.info("replication")["master_repl_offset"] > written, "Nothing was written meanwhile."
        master.stop(signal.SIGKILL)
    finally:
        replica.process.send_signal(signal.SIGCONT)
    with _killed(arena.cluster, master, replica):
        pass


@fault("a replica of the Cluster takes over in order", uses="redis", arena="cluster")
def hand_over(arena: Arena) -> None:
    replica = arena.cluster.replica_of(arena.cluster.masters()[0])
    with replica.client() as client:
        client.execute_command("CLUSTER FAILOVER")
    arena.cluster.await_takeover(replica)
    arena.cluster.await_agreement()


@fault("a master of the Cluster is stopped until its replica took over, and goes on", uses="redis", arena="cluster")
def stop_master(arena: Arena) -> None:
    """The old master wakes up as a master, so for a moment there are two."""
    master = arena.cluster.masters()[0]
    replica = arena.cluster.replica_of(master)
    assert master.process is not None
    master.process.send_signal(signal.SIGSTOP)
    try:
        arena.cluster.await_takeover(replica)
        arena.hold(DOWN_SECONDS)
    finally:
        master.process.send_signal(signal.SIGCONT)
        arena.cluster.await_agreement()


@contextlib.contextmanager
def _killed(cluster: Cluster, master: RedisServer, replica: RedisServer | None = None) -> Iterator[None]:
    """Kill the master; inside the block its replica is master; afterwards it is back as a replica."""
    replica = replica or cluster.replica_of(master)
    master.stop(signal.SIGKILL)
    try:
        cluster.await_takeover(replica)
        yield
    finally:
        master.start()
        cluster.await_agreement()
