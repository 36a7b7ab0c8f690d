"""How long each page of the admin takes on five million jobs, and how many queries it costs.

    python -m benchmarks.admin_pages                    (make bench-admin)
    ROWS=200000 REPEATS=5 python -m benchmarks.admin_pages list board

Starts a PostgreSQL of its own (requirements-dev.txt) and fills it: some minutes and 7 GB in TMPDIR. With DATABASE_URL
it fills that database unless it has jobs already; it must be one to throw away, as bulk changes are begun in it and
its topics become visible to some groups only. The names of pages, or parts of names, choose among them.

Three people ask: one who sees all, one who sees one topic with 4 % of the jobs, and one who sees all topics but the
largest. Each page is asked for in this process, from the address to the last byte of HTML; first once without the
clock, then REPEATS times, all pages in turn. *computing* is what the dearest of the three costs at the median, here
and in PostgreSQL together: about what a page takes where nothing else is at work. It ends with what took more than
300 ms at the median, and then with exit code 1. What is normal: docs/staff.md.
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
MOST_MS = 300
PIECES_SECONDS = 10  # of working at a bulk change
LIST, TOPICS, CHANGES = "/admin/delaytasks/job/", "/admin/delaytasks/topic/", "/admin/delaytasks/bulkchange/"
ALL, BOARD = f"{LIST}all/", "/admin/delaytasks/board/"
PEOPLE = ("all", "one", "most")
HEAD = (
    "page",
    "queries",
    "computing",
    *(f"{who}: median / p95 / worst" for who in ("sees all", "sees one topic", "sees most")),
)


class Page(NamedTuple):
    """What is asked for: an address, or what a client is told to do."""

    name: str
    ask: Callable[[Any], Any]
    around: Callable[[], Any] = ExitStack  # in which state of the cache


# The database


@contextmanager
def database() -> Iterator[str]:
    """The URL of a filled one."""
    given = os.environ.get("DATABASE_URL")
    with ExitStack() as at_end:
        if not given:
            from tests.servers import PostgresServer

            # The server's own defaults for what is asked of it; a commit is a commit.
            options = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "shared_buffers": "1GB"}
            server = at_end.enter_context(PostgresServer(maintenance_work_mem="512MB", max_wal_size="4GB", **options))
            given = server.make_database("admin_pages")
        os.environ.update(DATABASE_URL=given, CELERY_BROKER_URL="memory://")
        logging.disable(logging.WARNING)  # what is not there for somebody is meant so
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
        django.setup()
        prepare()
        yield given


def prepare() -> None:
    from django.core.management import call_command

    from benchmarks import admin_rows
    from delaytasks.models import Job

    call_command("migrate", verbosity=0)
    if not Job.objects.exists():
        begun = time.monotonic()
        admin_rows.fill(ROWS)
        print(f"{ROWS:,} jobs in {time.monotonic() - begun:.0f} s", file=sys.stderr)


def people() -> dict[str, Any]:
    """Their clients; the topics have the groups that make the difference."""
    from django.contrib.auth.models import Group, Permission, User
    from django.test import Client

    from benchmarks import admin_rows
    from delaytasks import topics
    from delaytasks.models import Job, Topic

    names = {admin_rows.EMPTY, *topics.known(), *(f"load.shop.{n:02}" for n in range(admin_rows.OTHERS))}
    names |= {admin_rows.LARGE, admin_rows.MIDDLE, admin_rows.SMALL, admin_rows.WHOLE, admin_rows.FEW, admin_rows.OLD}
    Topic.objects.bulk_create([Topic(name=name) for name in names], ignore_conflicts=True)
    groups = {who: Group.objects.get_or_create(name=who)[0] for who in ("one", "most", "nobody")}
    Topic.objects.update(visible_to=[groups["most"].pk])
    Topic.objects.filter(name=admin_rows.LARGE).update(visible_to=[groups["nobody"].pk])
    Topic.objects.filter(name=admin_rows.SMALL).update(visible_to=[groups["one"].pk, groups["most"].pk])
    assert Job.objects.filter(topic=admin_rows.LARGE).exists(), "these jobs are not this benchmark's"
    found = {}
    for who in PEOPLE:
        user, _ = User.objects.get_or_create(username=who, defaults={"is_staff": True, "is_superuser": who == "all"})
        if who != "all":
            user.groups.set([groups[who]])
            user.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "operate_job", "view_topic"]))
        found[who] = Client(SERVER_NAME="localhost")
        found[who].force_login(user)
    return found


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
    queries += [  # what no index answers
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
    """Pages behind the first one, each from a position: of the middle of the table, of a due time far ahead."""
    from delaytasks import clock
    from delaytasks.admin import cursors, walks

    later = clock.to_ms(django.utils.timezone.now()) + 200 * 86_400_000
    yield Page("list, page 2", second_page)
    for back in (False, True):
        way = "before" if back else "behind"
        newest = cursors.write(walks.NEW, [ROWS // 2], back=back)
        yield Page(f"list, {way} the middle", at(LIST, p=newest))
        yield Page(f"list state=cancelled, {way} the middle", at(LIST, p=newest, state="cancelled"))
        yield Page(
            f"list state=live, {way} 200 days",
            at(LIST, p=cursors.write(walks.DUE, [later, 1], back=back), state="live"),
        )


def second_page(client: Any) -> Any:
    """What the first page links to; the first page is not on the clock."""
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
    for name, around in (("nothing kept", forgotten), ("numbers renewed", grown_old), ("numbers kept", ExitStack)):
        yield Page(f"board's numbers, {name}", at(f"{BOARD}numbers/"), around)
        yield Page(f"board's numbers of a topic, {name}", at(f"{BOARD}numbers/", topic=SMALL), around)
        yield Page(f"topics, {name}", at(TOPICS), around)
        for topic in (LARGE, SMALL, EMPTY):
            yield Page(f"topic {topic}, {name}", at(f"{TOPICS}{topic}/change/"), around)


@contextmanager
def forgotten() -> Iterator[None]:
    from django.core.cache import cache

    cache.clear()
    yield


@contextmanager
def grown_old() -> Iterator[None]:
    """As after the seconds for which numbers are kept: they are worked out anew, with what is known of before."""
    from delaytasks import keeping

    kept = keeping.get

    def old(name: str) -> Any:
        found = kept(name)
        return found and (0.0, 0.0, found[2])

    with mock.patch.object(keeping, "get", old):
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
    yield Page("bulk begun, state=dead", confirm)
    change = BulkChange.objects.order_by("-total").first() or begun()
    yield Page("bulk changes", at(CHANGES))
    yield Page("bulk change", at(f"{CHANGES}{change.pk}/change/"))
    yield Page("bulk progress", at(f"{CHANGES}{change.pk}/progress/"))


def confirm(client: Any) -> Any:
    """Press the button of the page for all dead jobs."""
    data = {"what": "retry", "shown": "100000", "once": uuid4().hex, "unit": "hours", "amount": "", "reason": ""}
    return client.post(f"{ALL}?state=dead", data)


def begun(total: int = 90_000) -> Any:
    """A change as it is begun, to live jobs of many topics."""
    from benchmarks.admin_rows import SMALL
    from delaytasks import bulk
    from delaytasks.models import Job

    ids = list(Job.objects.live().filter(topic=SMALL).values_list("pk", flat=True)[: min(total, ROWS // 50)])
    return bulk.start("postpone", ids, by="all", delay_ms=1000, wish={"topics": {SMALL: len(ids)}})


# Measuring


class Times:
    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = {who: [] for who in PEOPLE}
        self.computing: dict[str, list[float]] = {who: [] for who in PEOPLE}
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
    found = {page.name: Times() for page in chosen}
    turns = list(itertools.product(chosen, PEOPLE))
    refused = set()
    for page, who in turns:
        with page.around():
            if not answered(page.ask(clients[who])):  # a job or topic that is not theirs to see
                assert who != "all", page.name
                refused.add((page.name, who))
        found[page.name].queries = max(found[page.name].queries, queries(page, clients[who]))
    for _ in range(REPEATS):
        for page, who in turns:
            if (page.name, who) not in refused:
                taken, computed = timed(page, clients[who])
                found[page.name].ms[who].append(taken)
                found[page.name].computing[who].append(computed)
    return found


def answered(response: Any) -> bool:
    return response.status_code == 200 or response.headers.get("Location", "").startswith(CHANGES)


def timed(page: Page, client: Any) -> tuple[float, float]:
    """ms by the clock, and ms of computing."""
    with page.around():
        before, start = computed_ms(), time.perf_counter()
        page.ask(client)
        return (time.perf_counter() - start) * 1000, computed_ms() - before


def computed_ms() -> float:
    """So far by this process and by its connection's, if that is on this machine."""
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

    with page.around(), CaptureQueriesContext(connection) as captured:
        page.ask(client)
    return sum(not each["sql"].startswith(("BEGIN", "COMMIT", "ROLLBACK")) for each in captured.captured_queries)


def bulk_speed() -> str:
    """How many jobs a second one worker changes."""
    from delaytasks import bulk

    change = begun()
    start = time.monotonic()
    bulk.work(change.pk, using="default", seconds=PIECES_SECONDS)
    spent = time.monotonic() - start
    change.refresh_from_db()
    return f"A bulk change: {change.position / spent:,.0f} jobs a second by one worker ({change.outcomes})."


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
        f" on average {os.getloadavg()[1]:.1f} programs at work before; {REPEATS} repeats; ms"
    )


def main(wanted: list[str]) -> int:
    with database():
        clients = people()
        chosen = [page for page in pages() if not wanted or any(part in page.name for part in wanted)]
        print(conditions(), file=sys.stderr)
        found = measure(chosen, clients)
        print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
        for name, times in found.items():
            print(f"| {' | '.join([name, *times.cells()])} |")
        if not wanted or "bulk speed" in wanted:
            print(f"\n{bulk_speed()}")
        return verdict(found)


def verdict(found: dict[str, Times]) -> int:
    slow = [f"{name} ({times.median():.0f} ms)" for name, times in found.items() if times.median() > MOST_MS]
    print(f"\nOver {MOST_MS} ms at the median: {', '.join(slow) or 'none'}.")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
