"""Behind PgBouncer in transaction mode, where each transaction of a connection may have another session."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from urllib.request import urlopen

import pytest
from django.db import connection

from delaytasks import schedule_many
from delaytasks.models import Job
from delaytasks.states import State
from project.shop.models import Product
from tests.conftest import not_run
from tests.support.servers import PostgresServer

from ..support.installation import World
from ..support.pgbouncer import POOL_SIZE, PgBouncer, pgbouncer_binary

pytestmark = pytest.mark.only_on("postgresql")
JOBS, REQUESTS = 300, 120


@pytest.fixture
def pooled(request: pytest.FixtureRequest, world: World, database_server: PostgresServer) -> Iterator[World]:
    """The installation with its processes behind the pooler. The test itself has a connection of its own."""
    if pgbouncer_binary() is None:
        request.config.stash[not_run].add("tests behind PgBouncer, which is not installed: apt-get install pgbouncer")
        pytest.skip("there is no pgbouncer here")
    with PgBouncer(database_server, connection.settings_dict["NAME"]) as pgbouncer:
        world.env |= {"DATABASE_URL": pgbouncer.url(), "POOLED": "1"}
        try:
            yield world
        finally:
            world.stop_all()


def test_the_site_and_the_engine_share_sessions_without_errors(pooled: World) -> None:
    Product.objects.create(name="Clock", price=Decimal("12.50"), stock=10)
    pooled.start_all(concurrency=2)
    pooled.start_worker("second", concurrency=2)
    pooled.start_web()
    pooled.await_workers()

    topics = ("quick", "batched", "backend")
    schedule_many({"topic": topics[n % 3], "key": f"k{n}", "delay": n / JOBS} for n in range(JOBS))
    with ThreadPoolExecutor(8) as clients:
        pages = list(clients.map(lambda _: urlopen(f"{pooled.url}/", timeout=120).read(), range(REQUESTS)))
    pooled.until(lambda: pooled.ended(JOBS, state=State.FINISHED), seconds=60, what="the jobs to end")

    assert all(b"Clock" in page for page in pages)
    effects = pooled.effects(*topics)
    assert Counter(effect.job_id for effect in effects) == Counter(Job.objects.values_list("pk", flat=True))
    assert not Job.objects.filter(failures__gt=0).exists()
    sessions = {effect.pid for effect in effects if effect.topic == "backend"}
    assert 1 < len(sessions) <= POOL_SIZE, "else nothing was shared"
    errors = [line for _, log in pooled.logs() for line in log.splitlines() if " ERROR " in line]
    assert errors == []
