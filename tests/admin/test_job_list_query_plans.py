"""Query plans of the list of jobs on PostgreSQL: index scans in order, with a bounded number of rows."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from delaytasks.admin.jobs import JobAdmin
from delaytasks.bulk import changes
from delaytasks.db import counts as counting
from delaytasks.db import pagination, selection
from delaytasks.models import BulkChange, Job, Topic
from delaytasks.states import State
from tests.support.query_plans import Plan, explain, plans_of

from .conftest import NOW, TOPIC

LIST, ALL = "/admin/delaytasks/job/", "/admin/delaytasks/job/all/"
ROWS = 20_000
RARE, HIDDEN = "test.rare", "test.hidden"
KEY, LIVE, PK = "delaytasks_job_key", "delaytasks_job_live_due", "delaytasks_job_pkey"
TOPIC_LIVE, DEAD, TOPIC_DEAD = "delaytasks_job_topic_due", "delaytasks_job_dead", "delaytasks_job_topic_dead"

pytestmark = pytest.mark.only_on("postgresql")


def state_of(number: int) -> State:
    if number % 4:
        return State.DELAYED
    return State.DEAD if number % 100 == 0 else State.CANCELLED if number % 100 == 4 else State.FINISHED


def topic_of(number: int) -> str:
    return RARE if number % 200 == 1 or number < 20 else HIDDEN if number % 10 == 9 else TOPIC


@pytest.fixture(scope="module")
def _table(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """20,000 jobs: most of them pending, some overdue, some ended; a large, a rare and a hidden topic."""
    rows = []
    for n in range(ROWS):
        state = state_of(n)
        ended = NOW if state is not State.DELAYED else None
        rows.append(
            Job(
                topic=topic_of(n), key=f"order:{n}", state=state, due_at=NOW + timedelta(seconds=n - 500),
                ended_at=ended, died_at=NOW if state is State.DEAD else None, ttr_ms=1000, created_at=NOW,
            )
        )  # fmt: skip
    with django_db_blocker.unblock():
        Job.objects.bulk_create(rows, batch_size=2000)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE delaytasks_job")
        yield
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE delaytasks_job, delaytasks_jobevent")


@pytest.fixture
def large(_table: None, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the row limits of a page, so that the table is large in comparison."""
    monkeypatch.setattr(pagination, "ROUNDS", (200, 400))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 800)
    monkeypatch.setattr(pagination, "SMALL_TOPIC", 500)
    Topic.objects.bulk_create([Topic(name=RARE), Topic(name=HIDDEN)])


def job_plans(client: Any, address: str, query: dict[str, str] | None = None) -> list[Plan]:
    """Return the plans of the queries on jobs, with the planner settings of a scan."""
    with counting.by_index("default"):
        return [plan for plan in plans_of(lambda: client.get(address, query)) if "delaytasks_job" in plan.sql]


def plans(client: Any, query: dict[str, str]) -> list[Plan]:
    """Return the plans that find a page's jobs, and check and leave out the query that fetches them by ID."""
    found = job_plans(client, LIST, query)
    *searches, last = found
    if '"id" IN (' not in last.sql:  # no jobs to fetch
        return found
    assert last.indexes == [PK], str(last)
    return searches


SERVED_BY: list[tuple[dict[str, str], set[str]]] = [
    ({}, {PK}),
    ({"state": "finished"}, {PK}),
    ({"state": "cancelled"}, {PK}),
    ({"state": "dead"}, {DEAD}),
    ({"state": "live"}, {LIVE}),
    ({"state": "live", "o": "-4"}, {LIVE}),
    ({"state": "delayed"}, {LIVE}),
    ({"state": "ready"}, {LIVE}),
    ({"state": "reserved"}, {LIVE}),
    ({"due": "overdue"}, {LIVE}),
    ({"due": "hour"}, {LIVE}),
    ({"due": "today"}, {LIVE}),
    ({"due": "today", "state": "reserved"}, {LIVE}),
    *(
        query
        for topic in (TOPIC, RARE, "test.unknown")
        for query in (
            ({"topic": topic, "state": "live"}, {TOPIC_LIVE}),
            ({"topic": topic, "state": "reserved"}, {TOPIC_LIVE}),
            ({"topic": topic, "due": "later"}, {TOPIC_LIVE}),
            ({"topic": topic, "due": "today", "o": "-4"}, {TOPIC_LIVE}),
            ({"topic": topic, "state": "dead"}, {TOPIC_DEAD}),
            ({"topic": topic, "o": "3"}, {KEY}),
            ({"topic": topic, "o": "-3", "state": "finished"}, {KEY}),
            ({"topic": topic, "q": "order:1042"}, {KEY}),
        )
    ),
    ({"topic": TOPIC}, {KEY, PK}),  # counts the topic first; as it is large, then newest first
    ({"topic": TOPIC, "state": "finished"}, {KEY, PK}),
    ({"topic": RARE}, {KEY}),
    ({"topic": RARE, "state": "finished"}, {KEY}),
    ({"q": "order:1042"}, {KEY}),
    ({"q": "o"}, {KEY}),
    ({"q": "order:1", "state": "ready"}, {KEY}),
    ({"q": "order:1", "due": "today", "o": "-3"}, {KEY}),
]


FEW_OF_A_TOPIC = {DEAD: TOPIC_DEAD, "delaytasks_job_one_live": TOPIC_LIVE}  # and the index for more rows


def check(plan: Plan, about: object) -> None:
    assert not plan.scans("delaytasks_job"), f"{about}\n{plan}"
    assert not [kind for kind in plan.types if "Bitmap" in kind], f"{about}\n{plan}"
    # Only small topics are read completely and sorted, as their newest jobs may have any key.
    assert "Sort" not in plan.types or ("USING" in plan.sql and plan.types.count("Limit") > 1), f"{about}\n{plan}"


def used(found: list[Plan], expected: set[str]) -> set[str]:
    """Return the indexes of these plans, with indexes for few rows mapped to those for many."""
    names = {index for plan in found for index in plan.indexes}
    return {name if name in expected else FEW_OF_A_TOPIC.get(name, name) for name in names}


def test_each_view_uses_its_index_in_order_on_each_page(admin_client, large, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 10)
    for query, indexes in SERVED_BY:
        found = plans(admin_client, query)
        for plan in found:
            check(plan, query)
        assert used(found, indexes) == indexes, query
        further = admin_client.get(LIST, query).context["cl"].next_url
        if further:
            for address in (further, admin_client.get(LIST + further).context["cl"].previous_url):
                for plan in job_plans(admin_client, LIST + address):
                    check(plan, address)


def test_a_number_is_searched_as_an_id_and_as_a_key_prefix(admin_client, large):
    found = plans(admin_client, {"q": "1042"})
    for plan in found:
        assert not plan.scans("delaytasks_job"), str(plan)
    assert {index for plan in found for index in plan.indexes} == {PK, KEY}


def test_jobs_of_other_topics_are_not_read_even_if_they_are_due_first(admin_client, large):
    late = NOW + timedelta(days=400)
    Job.objects.filter(topic=TOPIC, state=State.DELAYED, due_at__gt=NOW).update(due_at=late)
    for query in ({"state": "live"}, {"state": "delayed"}, {"due": "later"}, {"due": "later", "o": "-4"}):
        for plan in plans(admin_client, query | {"topic": TOPIC}):
            assert set(plan.indexes) == {TOPIC_LIVE}, f"{query}\n{plan}"


def test_the_list_of_a_limited_user_scans_only_visible_topics(staff, large):
    Topic.objects.filter(name=HIDDEN).update(visible_to=[Group.objects.create(name="others").pk])
    client = staff("delaytasks.view_job", "delaytasks.operate_job")
    for query, indexes in (
        ({"state": "live"}, {TOPIC_LIVE}),
        ({"state": "ready"}, {TOPIC_LIVE}),
        ({"due": "today"}, {TOPIC_LIVE}),
        ({"state": "dead"}, {TOPIC_DEAD}),
        ({"q": "order:1"}, {KEY}),
        ({}, {KEY, PK}),
    ):
        found = plans(client, query)
        for plan in found:
            check(plan, query)
        assert used(found, indexes) == indexes, query


def test_the_planner_expects_each_scan_to_be_bounded(admin_client, large):
    for query in ({"state": "reserved"}, {"state": "cancelled", "topic": TOPIC}, {"q": "order", "state": "reserved"}):
        for plan in plans(admin_client, query):
            assert "Limit" in plan.types, str(plan)
            limit = plan.types.index("Limit")
            assert plan.nodes[limit].rows <= 800, str(plan)


# All matches, and one job


@pytest.fixture
def bounded(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of a bulk change, so that the table is large in comparison."""
    monkeypatch.setattr(changes, "MAX_JOBS", 800)
    monkeypatch.setattr(selection, "ROW_LIMITS", (50, 200))
    monkeypatch.setattr(selection, "GROUPED_ROWS", 400)
    monkeypatch.setattr(changes, "send", lambda pk, using: None)


ALL_THAT_MATCH: list[tuple[dict[str, str], set[str], str]] = [
    # filters, indexes of the count, reason of a refusal
    ({"topic": RARE}, {KEY, TOPIC_LIVE, TOPIC_DEAD}, ""),
    ({"topic": RARE, "state": "live"}, {TOPIC_LIVE}, ""),
    ({"topic": RARE, "state": "delayed"}, {TOPIC_LIVE}, ""),
    ({"topic": RARE, "state": "dead"}, {TOPIC_DEAD}, ""),
    ({"topic": RARE, "state": "ready", "q": "order:1"}, {TOPIC_LIVE, KEY}, ""),
    ({"topic": TOPIC}, {KEY}, "many"),
    ({"topic": TOPIC, "state": "live"}, {TOPIC_LIVE}, "many"),
    ({"topic": TOPIC, "state": "delayed"}, {TOPIC_LIVE}, "many"),
    ({"topic": TOPIC, "state": "dead"}, {TOPIC_DEAD}, ""),
    ({"state": "live"}, {LIVE}, "many"),
    ({"state": "dead"}, {DEAD, TOPIC_DEAD}, ""),
    ({"state": "ready"}, {LIVE}, ""),
    ({"due": "overdue"}, {LIVE, TOPIC_LIVE}, ""),
    ({"due": "later"}, {LIVE, TOPIC_LIVE}, "none"),
    ({"due": "hour"}, {LIVE}, "many"),
    ({"q": "order:1042"}, {KEY, PK}, ""),
    ({"q": "order:19"}, {KEY}, "many"),
    ({"q": "order:1", "state": "live"}, {KEY, TOPIC_LIVE}, "wide"),
    ({"q": "order:1", "state": "ready"}, {KEY, TOPIC_LIVE}, ""),
    ({"q": "order:1", "state": "dead"}, {KEY, TOPIC_DEAD}, ""),
    ({"all": "1"}, {PK}, "many"),
]


def counts(found: list[Plan]) -> list[Plan]:
    return [plan for plan in found if "count(*)" in plan.sql and "delaytasks_job" in plan.sql]


def with_settings(plan: Plan) -> Plan:
    """Return the plan of the same statement with the planner settings in effect."""
    with counting.by_index("default"):
        return explain(plan.sql)


@pytest.mark.parametrize(("query", "indexes", "refused"), ALL_THAT_MATCH, ids=[str(each[0]) for each in ALL_THAT_MATCH])
def test_all_matches_are_counted_and_fetched_from_indexes(admin_client, bounded, query, indexes, refused):
    pages: list[Any] = []
    found = [with_settings(plan) for plan in counts(plans_of(lambda: pages.append(admin_client.get(ALL, query))))]
    assert pages[0].context.get("refused", "") == refused
    assert found
    for plan in found:
        assert not plan.scans("delaytasks_job"), str(plan)
        assert not [kind for kind in plan.types if "Bitmap" in kind], str(plan)
        assert "Sort" not in plan.types or "GROUP BY" in plan.sql, str(plan)
    assert used(found, indexes) <= indexes
    if not refused:
        data = {"what": "retry" if query.get("state") == "dead" else "cancel", "shown": "800", "unit": "hours"}
        sent = plans_of(lambda: pages.append(admin_client.post(f"{ALL}?{urlencode(query)}", data)))
        taken = [with_settings(plan) for plan in sent if "topic FROM (" in plan.sql]
        assert taken
        for plan in taken:
            assert not plan.scans("delaytasks_job"), str(plan)
        assert BulkChange.objects.latest("pk").total == pages[0].context["count"]


def test_a_bulk_change_finds_its_jobs_by_id(large):
    ids = list(Job.objects.filter(topic=RARE).values_list("pk", flat=True)[:60])
    change = changes.start("postpone", ids, by="anna", delay_ms=1000)
    found = [
        plan for plan in plans_of(lambda: changes.work(change.pk, using="default")) if "FROM delaytasks_job" in plan.sql
    ]
    assert found
    for plan in found:
        assert not plan.scans("delaytasks_job"), str(plan)
        assert set(plan.indexes) <= {PK}, str(plan)


def test_a_job_page_reads_its_row_and_events_by_index(admin_client, large):
    """Also for a job with thousands of old events: the newest are not searched among those of all jobs."""
    job = Job.objects.filter(died_at__isnull=False).first()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, done_ms, worker, actor, error, reason)"
            " SELECT coalesce(patient, id), 'failed', 1, 1, 1, '', '', '', '' FROM ("
            "  SELECT CAST(NULL AS bigint) AS patient, id FROM delaytasks_job"
            "  UNION ALL SELECT %s, n FROM generate_series(1, 5000) AS n) AS each ORDER BY patient NULLS LAST",
            [job.pk],
        )
        cursor.execute("ANALYZE delaytasks_jobevent")
    found = [
        plan for plan in plans_of(lambda: admin_client.get(f"{LIST}{job.pk}/change/")) if "delaytasks_job" in plan.sql
    ]
    assert len(found) >= 3
    for plan in found:
        assert not plan.scans("delaytasks_job"), str(plan)
        assert not plan.scans("delaytasks_jobevent"), str(plan)
        assert "delaytasks_jobevent_pkey" not in plan.indexes, str(plan)
