"""A worker serves the metrics of all processes of its pool, and a web process serves metrics without its database."""

import json
import os
import signal
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from delaytasks import schedule
from tests.support.servers import PostgresServer, free_port

from ..support.databases import unreachable
from ..support.installation import World

JOBS = 40
SCRAPE_SECONDS = 10  # Prometheus gives up after this time, unless it is configured otherwise


def scrape(port: int, *, seconds: float = 60) -> dict[str, float]:
    """Return the sums of the samples by name. Raises HTTPError, and TimeoutError if there is no answer in time."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=seconds) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def finished(port: int) -> float:
    return scrape(port)["delaytasks_finished_total"]


@pytest.mark.only_on("postgresql")
def test_a_web_process_serves_its_metrics_while_its_database_is_away(
    world: World, database_server: PostgresServer
) -> None:
    world.env["METRICS_PORT"] = str(free_port())
    world.start_web()
    known = scrape(world.port)
    assert known["delaytasks_database_up"] == 1
    with unreachable(database_server):
        for _ in range(2):  # the first right after the outage began, when the numbers are still in the cache
            found = scrape(world.port, seconds=SCRAPE_SECONDS)
            assert found["delaytasks_database_up"] == 0
            of_topics = {name for name in known if name.endswith("_jobs")}
            assert of_topics
            assert not of_topics & found.keys()
            assert "delaytasks_finished_total" in found
    world.until(lambda: scrape(world.port)["delaytasks_database_up"] == 1, seconds=15, what="the database to be back")


def test_the_attempts_of_all_processes_of_a_pool_are_counted_once(world: World) -> None:
    port = free_port()
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"METRICS_PORT": port})
    worker = world.start_worker(concurrency=2)
    world.await_workers()
    for number in range(JOBS):
        schedule("quick", key=f"k{number}", delay=0)
    world.until(lambda: finished(port) >= JOBS, seconds=15, what="the metrics to count all jobs")
    assert finished(port) == JOBS
    children = {effect.pid for effect in world.effects("quick")} - {worker.pid}
    os.kill(children.pop(), signal.SIGKILL)
    schedule("quick", key="after the death of a child", delay=0)
    world.until(lambda: finished(port) > JOBS, seconds=15, what="the metrics to count one job more")
    assert finished(port) == JOBS + 1
    assert worker.terminate() == 0
