"""Measure the time and number of queries of each admin page on five million jobs.

    python -m benchmarks.admin_pages                    (make bench-admin)
    ROWS=200000 REPEATS=5 python -m benchmarks.admin_pages list board

Starts its own PostgreSQL (requirements-dev.txt) and fills it, which takes some minutes and 7 GB in TMPDIR. With
DATABASE_URL it uses that database and fills it unless it has jobs. Use a disposable one: the benchmark starts bulk
changes and restricts topics to groups. Arguments select pages by parts of their names.

Three users request each page: one sees all topics, one sees a single topic with 4 % of the jobs, and one sees all
topics but the largest. Requests run in this process: once to warm up, then REPEATS times, all pages in turn.
*computing* is the median CPU time of the slowest user, in this process and PostgreSQL together: about the time of a
page on an idle machine. The end of the report lists pages above 300 ms at the median; the exit code is then 1.
docs/explanation/admin-performance.md has reference results.
"""

import itertools
import logging
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlencode
from uuid import uuid4

import django

ROWS = int(os.environ.get("ROWS", "5_000_000"))
REPEATS = int(os.environ.get("REPEATS", "15"))
MAX_MS = 300
BULK_SECONDS = 10  # run time of a bulk change
LIST, TOPICS, CHANGES = "/admin/delaytasks/job/", "/admin/delaytasks/topic/", "/admin/delaytasks/bulkchange/"
ALL, BOARD = f"{LIST}all/", "/admin/delaytasks/board/"
USERS = ("all", "one", "most")
HEAD = (
    "page",
    "queries",
    "computing",
    *(f"{who}: median / p95 / worst" for who in ("sees all", "sees one topic", "sees most")),
)


class Page(NamedTuple):
    """A page to measure.

    request   requests the page with a test client
    context   prepares the state of the cache
    """

    name: str
    request: Callable[[Any], Any]
    context: Callable[[], Any] = ExitStack


# The database


@contextmanager
def database() -> Iterator[str]:
    """Yield the URL of a filled database."""
    url = os.environ.get("DATABASE_URL")
    with ExitStack() as at_end:
        if not url:
            from tests.support.servers import PostgresServer

            # PostgreSQL's defaults: every commit is durable.
            options = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "shared_buffers": "1GB"}
            server = at_end.enter_context(PostgresServer(maintenance_work_mem="512MB", max_wal_size="4GB", **options))
            url = server.make_database("admin_pages")
        os.environ.update(DATABASE_URL=url, CELERY_BROKER_URL="memory://")
        logging.disable(logging.WARNING)  # 404 responses are expected
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
        django.setup()
        prepare()
        yield url


def prepare() -> None:
    from django.core.management import call_command

    from benchmarks import admin_rows
    from delaytasks.models import Job

    call_command("migrate", verbosity=0)
    if not Job.objects.exists():
        begun = time.monotonic()
        admin_rows.fill(ROWS)
        print(f"{ROWS:,} jobs in {time.monotonic() - begun:.0f} s", file=sys.stderr)


def make_clients() -> dict[str, Any]:
    """Return a client for each user; restrict the topics to their groups."""
    from django.contrib.auth.models import Group, Permission, User
    from django.test import Client

    from benchmarks import admin_rows
    from delaytasks import handlers
    from delaytasks.models import Job, Topic

    names = {admin_rows.EMPTY, *handlers.known(), *(f"load.shop.{n:02}" for n in range(admin_rows.OTHERS))}
    names |= {admin_rows.LARGE, admin_rows.MIDDLE, admin_rows.SMALL, admin_rows.WHOLE, admin_rows.FEW, admin_rows.OLD}
    Topic.objects.bulk_create([Topic(name=name) for name in names], ignore_conflicts=True)
    groups = {who: Group.objects.get_or_create(name=who)[0] for who in ("one", "most", "nobody")}
    Topic.objects.update(visible_to=[groups["most"].pk])
    Topic.objects.filter(name=admin_rows.LARGE).update(visible_to=[groups["nobody"].pk])
    Topic.objects.filter(name=admin_rows.SMALL).update(visible_to=[groups["one"].pk, groups["most"].pk])
    assert Job.objects.filter(topic=admin_rows.LARGE).exists(), "this database was not filled by this benchmark"
    clients = {}
    for who in USERS:
        user, _ = User.objects.get_or_create(username=who, defaults={"is_staff": True, "is_superuser": who == "all"})
        if who != "all":
            user.groups.set([groups[who]])
            user.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "operate_job", "view_topic"]))
        clients[who] = Client(SERVER_NAME="localhost")
        clients[who].force_login(user)
    return clients


# The pages


def at(address: str, **query: str) -> Callable[[Any], Any]:
    return lambda client: client.get(address, query)


def pages() -> Iterator[Page]:
    yield from list_pages()
    yield from further_pages()
    yield from job_pages()
    yield from topic_pages()
    yield from bulk_pages()


def list_pages() -> Iterator[Page]:
    from benchmarks.admin_rows import EMPTY, FEW, LARGE, OLD, SMALL

    queries: list[dict[str, str]] = [{}]
    queries += [{"state": s} for s in ("live", "delayed", "ready", "reserved", "finished", "cancelled", "dead")]
    queries += [{"due": due} for due in ("overdue", "hour", "today", "day", "later")]
    for topic in (LARGE, SMALL, FEW, OLD, EMPTY):
        queries += [{"topic": topic}, {"topic": topic, "state": "live"}, {"topic": topic, "state": "finished"}]
    middle = ROWS // 2
    queries += [{"q": text} for text in (f"order:{middle}", f"order:{str(middle)[:3]}", "o", str(middle), "nothing")]
    queries += [  # without a matching index
        {"state": "cancelled", "topic": LARGE}, {"state": "cancelled", "topic": SMALL},
        {"state": "reserved", "o": "-4"}, {"state": "reserved", "topic": FEW}, {"state": "reserved", "due": "today"},
        {"state": "dead", "topic": SMALL},
        {"q": "order:", "state": "reserved"}, {"q": "order:", "state": "dead"}, {"q": "order:1", "due": "hour"},
        {"q": "order:1", "state": "ready", "topic": SMALL}, {"q": "order:", "o": "-3"}, {"topic": SMALL, "o": "3"},
        {"state": "live", "o": "-4"}, {"due": "hour", "topic": LARGE}, {"due": "overdue", "topic": FEW},
    ]  # fmt: skip
    for query in queries:
        yield Page(f"list {urlencode(query, safe=':')}".strip(), at(LIST, **query))


def further_pages() -> Iterator[Page]:
    """Pages after the first one: from the middle of the table and from a distant due time."""
    from delaytasks import clock
    from delaytasks.db.pagination import Cursor, encode
    from delaytasks.db.scans import DUE, NEWEST

    later = clock.to_ms(django.utils.timezone.now()) + 200 * 86_400_000
    yield Page("list, page 2", second_page)
    for back in (False, True):
        direction = "before" if back else "after"
        newest = encode(NEWEST, Cursor([ROWS // 2], backwards=back))
        yield Page(f"list, {direction} the middle", at(LIST, p=newest))
        yield Page(f"list state=cancelled, {direction} the middle", at(LIST, p=newest, state="cancelled"))
        yield Page(
            f"list state=live, {direction} 200 days",
            at(LIST, p=encode(DUE, Cursor([later, 1], backwards=back)), state="live"),
        )


def second_page(client: Any) -> Any:
    """Request the second page. The first page, which links to it, is loaded once and not measured."""
    if not hasattr(client, "second_page"):
        first = client.get(LIST)
        client.second_page = LIST + re.search(r'href="(\?p=[^"]+)"', first.content.decode())[1]  # type: ignore[index]
    return client.get(client.second_page)


def job_pages() -> Iterator[Page]:
    from benchmarks.admin_rows import PATIENT, SMALL
    from delaytasks.models import Job
    from delaytasks.states import State

    small = Job.objects.filter(topic=SMALL)
    for state in (State.FINISHED, State.DELAYED):
        yield job_page(f"job, {state.word}", small.filter(state=state, pk__gt=ROWS // 2).order_by("pk").first())
    yield job_page("job, dead", small.filter(died_at__isnull=False).order_by("pk").first())
    yield job_page("job with 5,000 events", Job.objects.filter(key=PATIENT).first())


def job_page(name: str, job: Any) -> Page:
    return Page(name, at(f"{LIST}{job.pk}/change/"))


def topic_pages() -> Iterator[Page]:
    from benchmarks.admin_rows import EMPTY, LARGE, SMALL

    yield Page("admin index", at("/admin/"))
    yield Page("board", at(BOARD))
    for name, context in (("empty cache", empty_cache), ("stale cache", stale_cache), ("warm cache", ExitStack)):
        yield Page(f"board's numbers, {name}", at(f"{BOARD}numbers/"), context)
        yield Page(f"board's numbers of a topic, {name}", at(f"{BOARD}numbers/", topic=SMALL), context)
        yield Page(f"topics, {name}", at(TOPICS), context)
        for topic in (LARGE, SMALL, EMPTY):
            yield Page(f"topic {topic}, {name}", at(f"{TOPICS}{topic}/change/"), context)


@contextmanager
def empty_cache() -> Iterator[None]:
    from django.core.cache import cache

    cache.clear()
    yield


@contextmanager
def stale_cache() -> Iterator[None]:
    """Make all cached numbers expired, so that they are recalculated from the previous ones."""
    from delaytasks.monitoring import cache

    get = cache.get

    def get_expired(name: str, kind: Any) -> Any:
        entry = get(name, kind)
        return entry and (0.0, 0.0, entry[2])

    with mock.patch.object(cache, "get", get_expired):
        yield


def bulk_pages() -> Iterator[Page]:
    from benchmarks.admin_rows import LARGE, SMALL, WHOLE
    from delaytasks.models import BulkChange

    queries: list[dict[str, str]] = [
        {"topic": WHOLE}, {"topic": WHOLE, "state": "live"}, {"topic": SMALL}, {"topic": LARGE}, {"state": "dead"},
        {"state": "reserved"}, {"state": "ready"}, {"due": "hour"}, {"state": "live"},
        {"q": "order:2", "state": "live"},
        {"topic": SMALL, "state": "live"}, {"topic": SMALL, "state": "dead"}, {"q": f"order:{str(ROWS // 2)[:4]}"},
    ]  # fmt: skip
    for query in queries:
        yield Page(f"bulk {urlencode(query, safe=':')}", at(ALL, **query))
    yield Page("bulk start, state=dead", confirm)
    change = BulkChange.objects.order_by("-total").first() or start_change()
    yield Page("bulk changes", at(CHANGES))
    yield Page("bulk change", at(f"{CHANGES}{change.pk}/change/"))
    yield Page("bulk progress", at(f"{CHANGES}{change.pk}/progress/"))


def confirm(client: Any) -> Any:
    """Submit the form for all dead jobs."""
    data = {"what": "retry", "shown": "100000", "once": uuid4().hex, "unit": "hours", "amount": "", "reason": ""}
    return client.post(f"{ALL}?state=dead", data)


def start_change(total: int = 90_000) -> Any:
    """Start a bulk change of live jobs."""
    from benchmarks.admin_rows import SMALL
    from delaytasks.bulk import changes
    from delaytasks.models import Job

    ids = list(Job.objects.live().filter(topic=SMALL).values_list("pk", flat=True)[: min(total, ROWS // 50)])
    return changes.start("postpone", ids, by="all", delay_ms=1000, selection={"topics": {SMALL: len(ids)}})


# Measuring


class Times:
    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = {who: [] for who in USERS}
        self.computing: dict[str, list[float]] = {who: [] for who in USERS}
        self.queries = 0

    def median(self) -> float:
        return max((statistics.median(ms) for ms in self.ms.values() if ms), default=0)

    def cells(self) -> list[str]:
        computing = max((statistics.median(ms) for ms in self.computing.values() if ms), default=0)
        return [
            str(self.queries),
            f"{computing:.0f}" if computing else "–",
            *(self.cell(sorted(ms)) for ms in self.ms.values()),
        ]

    @staticmethod
    def cell(ms: list[float]) -> str:
        if not ms:
            return "–"
        return f"{statistics.median(ms):.0f} / {ms[int(len(ms) * 0.95 - 0.01)]:.0f} / {ms[-1]:.0f}"


def measure(chosen: list[Page], clients: dict[str, Any]) -> dict[str, Times]:
    times = {page.name: Times() for page in chosen}
    turns = list(itertools.product(chosen, USERS))
    refused = set()
    for page, who in turns:
        with page.context():
            if not succeeded(page.request(clients[who])):  # a job or topic that this user cannot see
                assert who != "all", page.name
                refused.add((page.name, who))
        times[page.name].queries = max(times[page.name].queries, queries(page, clients[who]))
    for _ in range(REPEATS):
        for page, who in turns:
            if (page.name, who) not in refused:
                taken, computed = timed(page, clients[who])
                times[page.name].ms[who].append(taken)
                times[page.name].computing[who].append(computed)
    return times


def succeeded(response: Any) -> bool:
    return response.status_code == 200 or response.headers.get("Location", "").startswith(CHANGES)


def timed(page: Page, client: Any) -> tuple[float, float]:
    """Return the elapsed time and the CPU time, in ms."""
    with page.context():
        before, start = computed_ms(), time.perf_counter()
        page.request(client)
        return (time.perf_counter() - start) * 1000, computed_ms() - before


def computed_ms() -> float:
    """Return the CPU time so far of this process and of its PostgreSQL backend, if that is on this machine, in ms."""
    from django.db import connection

    connection.ensure_connection()
    stat = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat")
    try:
        server = int(stat.read_text().split()[0]) / 1e6
    except OSError:
        server = 0
    return time.process_time() * 1000 + server


def queries(page: Page, client: Any) -> int:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with page.context(), CaptureQueriesContext(connection) as captured:
        page.request(client)
    return sum(not query["sql"].startswith(("BEGIN", "COMMIT", "ROLLBACK")) for query in captured.captured_queries)


def bulk_speed() -> str:
    """Return how many jobs per second one worker changes."""
    from delaytasks.bulk import changes

    change = start_change()
    start = time.monotonic()
    changes.work(change.pk, using="default", seconds=BULK_SECONDS)
    seconds = time.monotonic() - start
    change.refresh_from_db()
    return f"A bulk change: {change.position / seconds:,.0f} jobs per second with one worker ({change.outcomes})."


def conditions() -> str:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT reltuples::bigint, pg_size_pretty(pg_database_size(current_database())),"
            " current_setting('server_version'), current_setting('shared_buffers') FROM pg_class"
            " WHERE relname = 'delaytasks_job'"
        )
        jobs, size, version, buffers = cursor.fetchone()
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return (
        f"{jobs:,} jobs, {size}; PostgreSQL {version} with {buffers} of buffers, Django {django.__version__},"
        f" Python {platform.python_version()}; {os.cpu_count()} cores of {model},"
        f" load average {os.getloadavg()[1]:.1f} before; {REPEATS} repeats; ms"
    )


def main(names: list[str]) -> int:
    with database():
        clients = make_clients()
        chosen = [page for page in pages() if not names or any(part in page.name for part in names)]
        print(conditions(), file=sys.stderr)
        results = measure(chosen, clients)
        print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
        for name, times in results.items():
            print(f"| {' | '.join([name, *times.cells()])} |")
        if not names or "bulk speed" in names:
            print(f"\n{bulk_speed()}")
        return verdict(results)


def verdict(results: dict[str, Times]) -> int:
    slow = [f"{name} ({times.median():.0f} ms)" for name, times in results.items() if times.median() > MAX_MS]
    print(f"\nOver {MAX_MS} ms at the median: {', '.join(slow) or 'none'}.")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
