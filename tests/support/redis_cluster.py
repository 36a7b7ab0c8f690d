"""A Redis Cluster on loopback: three masters, with or without replicas."""

import contextlib
from typing import Any, Self

import redis

from .servers import RedisServer, free_port, wait_until

SLOTS = 16_384
MASTERS = 3
BOUNDS = (0, 5_461, 10_923, SLOTS)
AGREE_SECONDS = 30


class Cluster:
    """A cluster of Redis servers. Their roles change in a failover, when a replica becomes a master.

    options   redis.conf options of each server: Cluster(cluster_node_timeout="1500")
    """

    def __init__(self, *, replicas: bool = False, **options: str) -> None:
        count = MASTERS * 2 if replicas else MASTERS
        self.servers = [_node(**options) for _ in range(count)]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(stack.enter_context(server).client()) for server in self.servers]
            for n, client in enumerate(clients[:MASTERS]):
                client.execute_command("CLUSTER ADDSLOTS", *range(*BOUNDS[n : n + 2]))
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", n + 1)
            for server in self.servers[1:]:
                clients[0].execute_command("CLUSTER MEET", "127.0.0.1", server.port)
            self.await_agreement()
            for master, replica in zip(clients, clients[MASTERS:], strict=False):
                replica.execute_command("CLUSTER REPLICATE", master.execute_command("CLUSTER MYID"))
            self.await_agreement()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self) -> str:
        return self.servers[0].url()

    def masters(self) -> list[RedisServer]:
        return [server for server in self.servers if _role(server)["role"] == "master"]

    def replica_of(self, master: RedisServer) -> RedisServer:
        (found,) = [server for server in self.servers if _role(server).get("master_port") == master.port]
        return found

    def await_takeover(self, replica: RedisServer) -> None:
        """Wait until the replica is a master and reports the state of the cluster as ok."""
        wait_until(
            lambda: _role(replica)["role"] == "master" and _state(replica) == "ok",
            seconds=AGREE_SECONDS,
            what="the replica to take over",
        )

    def await_agreement(self) -> None:
        """Wait until each server is connected to all others and each replica is in sync with its master."""
        wait_until(
            lambda: all(self._agrees(server) for server in self.servers),
            seconds=AGREE_SECONDS,
            what="the cluster to agree",
        )

    def _agrees(self, server: RedisServer) -> bool:
        """Return whether a server knows all others, has working links to them, which pub/sub needs, and is in sync."""
        with contextlib.suppress(redis.RedisError), server.client() as client:
            nodes = client.execute_command("CLUSTER NODES").values()
            known = _state(server) == "ok" and len(nodes) == len(self.servers)
            in_sync = _role(server).get("master_link_status", "up") == "up"
            return known and in_sync and all(node["connected"] and _is_well(node["flags"]) for node in nodes)
        return False


def _node(**options: str) -> RedisServer:
    """Return a Redis server. Its port + 10,000 is a valid port, because the cluster bus uses that port."""
    server = RedisServer(cluster_enabled="yes", databases="1", **options)
    while server.port > 55_535:
        server.port = free_port()
    return server


def _is_well(flags: str) -> bool:
    return not any(word in flags for word in ("handshake", "fail"))


def _state(server: RedisServer) -> str:
    with server.client() as client:
        return client.execute_command("CLUSTER INFO")["cluster_state"]


def _role(server: RedisServer) -> dict[str, Any]:
    """Return the result of INFO replication, or {"role": "none"} if the server does not respond."""
    try:
        with server.client() as client:
            return client.info("replication")
    except redis.RedisError:
        return {"role": "none"}
