"""Measure waiting long polls on one web process: their cost and their effect on other requests.

    DELAYTASKS_TEST_DB=postgres python -m benchmarks.long_polls 200 1000 3000

Starts Redis, a database, a Celery worker and one uvicorn with the project (requirements-dev.txt). For each number,
that many polls wait for one topic. Then it times other requests and the delivery of a due job of another topic, and
finally schedules a job for each poll. Clients and servers share the machine. docs/howto/deploy.md has reference
results.
"""

import asyncio
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import django

REQUESTS = 100
ROUNDS = 20
WAIT_SECONDS = 60
FILES = 10_000  # limit of open files; each poll needs one on both sides

HEAD = (
    "polls", "until all wait", "memory", "threads", "connections", "others: median / p95", "woken: median / worst",
    "all woken at once",
)  # fmt: skip

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")


@contextmanager
def running(directory: Path) -> Iterator[Any]:
    """Run an installation with a worker and a web process."""
    from django.db import connection, connections

    from tests.support.databases import copied, make_template
    from tests.support.installation import World
    from tests.support.servers import PostgresServer, RedisServer

    with ExitStack() as at_end:
        server = at_end.enter_context(PostgresServer()) if connection.vendor == "postgresql" else None
        if server:
            connections.settings["default"].update(server.settings)
        template = make_template("bench", directory, server)
        url = at_end.enter_context(copied(template, "bench_polls", directory, server))
        redis = at_end.enter_context(RedisServer())
        world = World(directory, redis, url, DJANGO_SETTINGS_MODULE="tests.server.settings")
        at_end.callback(world.stop_all)
        world.start_worker(concurrency=1)
        world.start_web()
        world.await_workers()
        yield world


def make_token(topic: str) -> Any:
    """Create the topic; return the secret of a token with all permissions."""
    from delaytasks.api.models import Grant, ServiceAccount, Token
    from delaytasks.models import Topic

    Topic.objects.get_or_create(name=topic)
    account, _made = ServiceAccount.objects.get_or_create(name="bench")
    token, secret = Token.objects.create_key(name="bench", account=account, rate_per_minute=10_000_000)
    Grant.objects.create(token=token, topic="*", produce=True, consume=True, manage=True)
    return secret


async def measure(world: Any, api: Any, pid: int, count: int) -> list[str]:
    """Return the cells of one row."""
    from tests.support.http_client import aside
    from tests.support.process_usage import connections_counter, resident_mib, threads

    topic = f"many.{count}"
    await aside(make_token, topic)
    connections = await aside(connections_counter, world, pid)
    polls = []
    begun = time.monotonic()
    for _ in range(count):
        polls.append(asyncio.create_task(api.poll(topic, WAIT_SECONDS)))
        if len(polls) % 50 == 0:
            await api.acall("GET", "health/")  # wait until the server has accepted them
    await api.acall("GET", f"topics/{topic}/")
    taken = time.monotonic() - begun
    latencies = sorted([await time_request(api, topic) for _ in range(REQUESTS)])
    usage = f"{resident_mib(pid):.0f} MiB", str(threads(pid)), str(await aside(connections))
    late = sorted([await time_delivery(api) for _ in range(ROUNDS)])
    delivered = await deliver_to_all(api, topic, polls)
    return [
        f"{count:,}",
        f"{taken:.1f} s",
        *usage,
        f"{latencies[REQUESTS // 2] * 1000:.0f} / {latencies[REQUESTS * 95 // 100] * 1000:.0f} ms",
        f"{statistics.median(late) * 1000:.0f} / {late[-1] * 1000:.0f} ms",
        delivered,
    ]


async def time_request(api: Any, topic: str) -> float:
    begun = time.monotonic()
    answer = await api.acall("GET", f"topics/{topic}/")
    assert answer.status == 200, answer
    return answer.at - begun


async def time_delivery(api: Any) -> float:
    """Return the seconds from a job's due time until the waiting poll receives it."""
    from django.utils import timezone

    from delaytasks import schedule
    from tests.support.http_client import aside

    poll = asyncio.create_task(api.poll("one", WAIT_SECONDS))
    job = await aside(schedule, "one", key=uuid4().hex, delay=timedelta(milliseconds=200), ttr=3600)
    answer = await poll
    assert [job_data["id"] for job_data in answer.data["jobs"]] == [job.pk], answer
    return (timezone.now() - job.due_at).total_seconds() - (time.monotonic() - answer.at)


async def deliver_to_all(api: Any, topic: str, polls: list[Any]) -> str:
    """Make a job ready for each poll at once; return the seconds until all have one, and how many timed out."""
    from delaytasks import schedule_many
    from tests.support.http_client import aside

    begun = time.monotonic()
    await aside(schedule_many, [{"topic": topic, "key": f"k{n}", "delay": 0, "ttr": 3600} for n in range(len(polls))])
    answers = await asyncio.gather(*polls)
    without = sum(not answer.data["jobs"] for answer in answers)
    return f"{max(answer.at for answer in answers) - begun:.1f} s" + (f", {without} timed out" if without else "")


def main(counts: list[int]) -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    django.setup()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as world:
        report(world, counts)


def report(world: Any, counts: list[int]) -> None:
    from django.conf import settings
    from django.db import connection
    from django.test import override_settings

    from tests.support.http_client import Api

    with override_settings(DELAYTASKS={**settings.DELAYTASKS, "REDIS_URL": world.redis.url()}):
        api = Api(world.port, make_token("one"))
        pid = next(process.pid for process in world.processes if process.name == "web")
        print(f"{connection.vendor}, {os.cpu_count()} cores, Python {platform.python_version()}", file=sys.stderr)
        print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
        for count in counts:
            print(f"| {' | '.join(asyncio.run(measure(world, api, pid, count)))} |", flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [200, 1000, 3000])
