"""Kinds of installation for faults that need a special one: name -> context manager."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from django.test.utils import override_settings

from tests.support.pgbouncer import PgBouncer
from tests.support.rabbitmq import RabbitServer
from tests.support.redis_cluster import Cluster

from .environment import DURABLE, Arena, arena
from .faketime import OFF_SECONDS, Dial, WrongRedis, sweep_up, wrong_by
from .postgresql import SmallFiles
from .proxy import Proxy
from .targets import installations as targets

NODE_TIMEOUT_MS = "1500"  # after which the Cluster fails over a silent master


@contextlib.contextmanager
def proxied(directory: Path, database: str) -> Iterator[Arena]:
    """All processes reach Redis through a Proxy; the checker reads it directly."""
    with arena(directory, database=database) as there, Proxy(there.redis.port) as there.proxy:
        url = f"redis://127.0.0.1:{there.proxy.port}/0"
        there.env |= {"REDIS_URL": url, "CELERY_BROKER_URL": url}
        yield there


@contextlib.contextmanager
def behind_proxied_broker(directory: Path, database: str) -> Iterator[Arena]:
    """Broker and mirror are two Redis servers. All processes reach the broker through a Proxy."""
    with arena(directory, database=database, own_broker=True) as there, Proxy(there.broker.port) as there.proxy:
        there.env["CELERY_BROKER_URL"] = f"redis://127.0.0.1:{there.proxy.port}/0"
        yield there


@contextlib.contextmanager
def pooled(directory: Path, database: str) -> Iterator[Arena]:
    """All processes reach PostgreSQL through a PgBouncer in transaction mode; the checker reads it directly."""
    with arena(directory, database=database) as there, pooler(there):
        yield there


@contextlib.contextmanager
def pooler(there: Arena) -> Iterator[None]:
    """Start a PgBouncer and give its address to the processes, which are stopped before it."""
    assert there.postgres is not None
    database = there.database_url.rpartition("/")[2].partition("?")[0]
    with PgBouncer(there.postgres, database) as there.pooler:
        there.env |= {"DATABASE_URL": there.pooler.url(), "POOLED": "1"}
        yield
        there.stop_all()


@contextlib.contextmanager
def clustered(directory: Path, database: str) -> Iterator[Arena]:
    """The mirror is a Redis Cluster of three masters and three replicas; the broker is a separate Redis."""
    with (
        Cluster(replicas=True, cluster_node_timeout=NODE_TIMEOUT_MS) as cluster,
        arena(directory, database=database) as there,
        override_settings(DELAYTASKS={"REDIS_URL": cluster.url(), "REDIS_CLUSTER": True}),
    ):
        there.cluster = cluster
        there.env |= {"MIRROR_URL": cluster.url(), "MIRROR_CLUSTER": "1"}
        yield there


@contextlib.contextmanager
def by_amqp(directory: Path, database: str) -> Iterator[Arena]:
    """RabbitMQ is the broker; Redis is only the mirror."""
    with RabbitServer() as rabbit, arena(directory, database=database) as there:
        there.broker = rabbit
        there.env |= {"CELERY_BROKER_URL": rabbit.url()}
        yield there


@contextlib.contextmanager
def faked(directory: Path, database: str, **options: Any) -> Iterator[Arena]:
    """Set up an installation with processes under libfaketime."""
    try:
        with arena(directory, database=database, **options) as there:
            yield there
    finally:
        sweep_up()


def skewed(seconds: int) -> Callable[[Path, str], AbstractContextManager[Arena]]:
    """All processes but the servers have clocks ahead by `seconds`; negative: behind."""

    @contextlib.contextmanager
    def installation(directory: Path, database: str) -> Iterator[Arena]:
        with faked(directory, database) as there:
            there.env |= wrong_by(seconds, there.env)
            yield there

    return installation


@contextlib.contextmanager
def apart(directory: Path, database: str) -> Iterator[Arena]:
    """One worker's clock is ahead, the other's behind; all other clocks are correct."""
    with faked(directory, database) as there:
        there.env_of["worker1"] = wrong_by(OFF_SECONDS, there.env)
        there.env_of["worker2"] = wrong_by(-OFF_SECONDS, there.env)
        yield there


@contextlib.contextmanager
def redis_ahead(directory: Path, database: str) -> Iterator[Arena]:
    with faked(directory, database, redis=WrongRedis()) as there:
        yield there


@contextlib.contextmanager
def small_files(directory: Path, database: str) -> Iterator[Arena]:
    with arena(directory, database=database, postgres=SmallFiles(**DURABLE)) as there:
        yield there


@contextlib.contextmanager
def deploys(directory: Path, database: str) -> Iterator[Arena]:
    """An ordinary installation without other faults, because wasted attempts are counted."""
    with arena(directory, database=database) as there:
        yield there


@contextlib.contextmanager
def jumping(directory: Path, database: str) -> Iterator[Arena]:
    """The clocks are correct until the dial is turned."""
    with faked(directory, database) as there:
        there.dial = Dial(directory)
        there.env |= there.dial.wrong(there.env)
        yield there


@contextlib.contextmanager
def threads(directory: Path, database: str) -> Iterator[Arena]:
    """Workers with thread pools: handlers are not interrupted, only the fencing token refuses late ones."""
    with arena(directory, database=database) as there:
        there.populate(pool="threads")
        yield there


INSTALLATIONS: dict[str, Callable[[Path, str], AbstractContextManager[Arena]]] = {
    "proxied": proxied,
    "silent broker": behind_proxied_broker,
    "pooled": pooled,
    "cluster": clustered,
    "amqp": by_amqp,
    "ahead": skewed(OFF_SECONDS),
    "behind": skewed(-OFF_SECONDS),
    "apart": apart,
    "redis ahead": redis_ahead,
    "jumping": jumping,
    "deploys": deploys,
    "small files": small_files,
    "threads": threads,
    "peers": targets.peers,
    "stores": targets.stores,
    "rabbit": targets.rabbit,
}
