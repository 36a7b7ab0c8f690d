"""What the timers ask must not cost more because more is pending: plans over 200,000 rows, on PostgreSQL."""

import re
from collections.abc import Iterator

import pytest
from django.db import connection

import delaytasks
from delaytasks import clock
from delaytasks.db import counts, dialects, groups, lookups, pagination, retention, transitions
from delaytasks.db.scans import JobFilter
from delaytasks.maintenance import loads
from delaytasks.models import Job
from delaytasks.states import State

from ..support.query_plans import Plan, explain, plans_of

ROWS = 200_000
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.xdist_group("explain")]


@pytest.fixture(scope="module")
def table(django_db_setup: None, django_db_blocker) -> Iterator[None]:
    """200,000 jobs: nine in ten ended; of the live ones 100 are due, two of them held by a dead worker.

    All jobs of some topics are dead: the planner assumes that topic and state are independent and would otherwise
    estimate too few rows for an index scan.
    """
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at,
                                            reserved_at, lease_until, ended_at, died_at, worker, error)
                SELECT 't' || n %% 20, 'k' || n,
                    CASE WHEN n <= 2 THEN 3 WHEN n %% 10 = 0 OR n <= 100 THEN 1 WHEN n %% 20 = 1 THEN 6 ELSE 4 END,
                    now() + CASE WHEN n <= 100 THEN -1 ELSE n END * interval '1 second',
                    60000, CASE WHEN n <= 2 THEN 1 ELSE 0 END, 0, '{}', now(), NULL,
                    CASE WHEN n <= 2 THEN now() - interval '1 second' END,
                    CASE WHEN n <= 100 OR n %% 10 = 0 THEN NULL ELSE now() END,
                    CASE WHEN n > 100 AND n %% 10 > 0 AND n %% 20 = 1 THEN now() END, '', ''
                FROM generate_series(1, %s) AS n""",
                [ROWS],
            )
            cursor.execute("ANALYZE delaytasks_job")
        yield
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE delaytasks_job, delaytasks_jobevent")


@pytest.fixture(autouse=True)
def _database(table: None, db: None) -> None:
    """These tests only read, so a rollback is enough."""
    dialects.set_clock(None)


def now_ms() -> int:
    return int(dialects.now_ms("default"))


@pytest.mark.parametrize("count", [1, 64, 5_000])
def test_live_keys_are_looked_up_one_by_one(count: int) -> None:
    pairs = [(f"t{n % 20}", f"k{n}") for n in range(10, 10 * count + 10, 10)]
    (plan,) = plans_of(lambda: transitions.find_live("default", pairs))
    assert not plan.scans("delaytasks_job"), str(plan)
    assert set(plan.indexes) == {"delaytasks_job_one_live", "delaytasks_job_pkey"}, str(plan)


@pytest.fixture
def new_topic() -> str:
    """A topic with 2,000 live jobs, which is newer than the table's statistics."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, worker,
                                        error)
            SELECT 'new', 'k' || n, 1, now(), 60000, 0, 0, '{}', now(), '', '' FROM generate_series(1, 2000) AS n"""
        )
    return "new"


BY_KEY = {
    "live": lambda topic: transitions.find_live("default", [(topic, "k5")]),
    "latest": lambda topic: transitions.find_latest("default", topic, "k5"),
    "cancel": lambda topic: transitions.cancel_live("default", topic, "k5"),
    "finish": lambda topic: groups.find_attempts("default", [], [(topic, "k5")]),
}


@pytest.mark.parametrize("name", BY_KEY)
def test_a_key_of_a_new_topic_is_looked_up_without_its_other_jobs(name: str, new_topic: str) -> None:
    for plan in plans_of(lambda: BY_KEY[name](new_topic)):
        assert "delaytasks_job_topic_due" not in plan.indexes, str(plan)
        assert "delaytasks_job_one_live" in plan.indexes, str(plan)


STATEMENTS = {
    "claim by id": lambda ids: transitions.claim("default", "t1", ids, "w"),
    "first claim of several": lambda ids: transitions.claim_first("default", "t1", ids, "w"),
    "claim with the end of another job": lambda ids: transitions.end_and_claim(
        "default", transitions.Ending(ids[0], 1, transitions.FINISHED, None, 0, ""), "t1", ids[1:] or [2], "w"
    ),
    "claim with the end of another job, after a check of constraints": lambda ids: transitions.end_and_claim(
        "default",
        transitions.Ending(ids[0], 1, transitions.FINISHED, None, 0, ""),
        "t1",
        ids[1:] or [2],
        "w",
        check_constraints=True,
    ),
    "ready jobs without a mirror": lambda ids: lookups.ready_ids("default", "t1", limit=50, without=[1, 2]),
    "jobs of a dead worker": lambda ids: lookups.held_by("default", "w/", after=(0, 0), limit=500),
    "unclaim": lambda ids: transitions.unclaim("default", [(n, 1) for n in ids]),
    "overdue probe": lambda ids: lookups.overdue("default", age_ms=500, after=(0, 0), limit=500),
    "overdue probe, further on": lambda ids: lookups.overdue(
        "default", age_ms=500, after=(now_ms() - 1_000, 50), limit=500
    ),
    "expired leases": lambda ids: lookups.expired("default", after=(0, 0), limit=500),
    "feeder": lambda ids: lookups.window("default", until_ms=now_ms() + 60_000, after=(now_ms(), 0), limit=500),
    "ready jobs of a topic": lambda ids: lookups.has_ready("default", "t1"),
    "next due time": lambda ids: lookups.next_due_ms("default"),
    "snapshots of missed claims": lambda ids: lookups.get_snapshots("default", ids),
    "end": lambda ids: transitions.end_if_held(
        "default", [transitions.Ending(n, 1, transitions.FINISHED, None, 0, "") for n in ids]
    ),
    "expire": lambda ids: transitions.expire("default", [transitions.Abandoned(n, 1, 5) for n in ids], "over"),
    "renew": lambda ids: transitions.renew_if_held("default", [(n, 1) for n in ids]),
    "cancel by id": lambda ids: transitions.cancel_delayed("default", ids[0]),
    "cancel by key": lambda ids: transitions.cancel_live("default", "t1", "k21"),
    "loaded, for the mirror": lambda ids: loads._entries("default", now_ms() + 60_000, pk__gt=50_000, pk__lte=50_900),
    "replaced by a load, for the mirror": lambda ids: loads._entries("default", now_ms() + 60_000, pk__in=ids),
    "live by key": lambda ids: transitions.find_live("default", [("t1", "k21"), ("t2", "k22")]),
    "latest by key": lambda ids: transitions.find_latest("default", "t1", "k21"),
}


def test_the_check_of_constraints_before_a_claim_adds_no_join_to_the_plan():
    """A function in the WHERE of a WITH query keeps PostgreSQL from merging that query with the UPDATE."""
    ending = transitions.Ending(1, 1, transitions.FINISHED, None, 0, "")
    (plan,) = plans_of(lambda: transitions.end_and_claim("default", ending, "t1", [2, 3], "w", check_constraints=True))
    assert "CTE held" not in plan.text, str(plan)
    assert plan.types.count("Nested Loop") == 2, str(plan)  # of the claim, and of the two results


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_of_the_engine_reads_the_whole_table(name):
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM delaytasks_job WHERE ended_at IS NULL ORDER BY due_at, id LIMIT 40")
        ids = [row[0] for row in cursor.fetchall()]
    full_scan = cost(explain("SELECT count(*) FROM delaytasks_job WHERE worker <> ''"))
    plans = plans_of(lambda: STATEMENTS[name](ids))
    assert plans
    for plan in plans:
        assert not plan.scans("delaytasks_job"), str(plan)
        assert cost(plan) < full_scan / 10, str(plan)


@pytest.mark.parametrize("name", [name for name in STATEMENTS if "claim" in name and "missed" not in name])
def test_a_claim_reads_only_its_candidates_where_the_statistics_do_not_know_the_topic(name):
    """A burst: the planner expects hardly any jobs of the topic, and an index by topic would read all of them."""
    with connection.cursor() as cursor:
        cursor.execute("""
            INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, worker,
                                        error)
            SELECT 't1', 'burst' || n, 1, now(), 60000, 0, 0, '{}', now(), '', '' FROM generate_series(1, 5000) AS n
            RETURNING id""")
        ids = [row[0] for row in cursor.fetchmany(8)]
        cursor.execute("UPDATE delaytasks_job SET topic = 'burst' WHERE key LIKE 'burst%'")
    (plan,) = plans_of(lambda: STATEMENTS[name](ids))
    plan = explain(plan.sql.replace("'t1'", "'burst'"))
    assert {node.index for node in plan.nodes if node.relation == "delaytasks_job" and node.index} <= {
        "delaytasks_job_pkey"
    }, plan
    assert not plan.scans("delaytasks_job"), plan


def cost(plan: Plan) -> float:
    return float(re.search(r"cost=[\d.]+\.\.([\d.]+)", plan.text)[1])


def test_the_timers_use_the_index_of_live_due_times(table):
    for name in ("overdue probe", "expired leases", "feeder", "next due time"):
        plan = plans_of(lambda name=name: STATEMENTS[name]([1]))[-1]
        assert "delaytasks_job_live_due" in plan.indexes, str(plan)


def test_the_ready_jobs_without_a_mirror_skip_the_backlog_of_other_topics(table):
    plan = plans_of(lambda: STATEMENTS["ready jobs without a mirror"]([1]))[-1]
    assert "delaytasks_job_topic_due" in plan.indexes, str(plan)


def test_a_claim_by_priority_reads_only_the_first_jobs_of_each_level(table):
    """10,000 jobs are due. A plan that sorts them would read them all; an index by priority has the few with one."""
    with connection.cursor() as cursor:
        cursor.execute("""
            UPDATE delaytasks_job SET due_at = now() - id * interval '1 ms',
                priority = CASE WHEN id / 20 % 50 = 0 THEN 1 + id / 1000 % 9 ELSE 0 END
            WHERE topic = 't10' AND ended_at IS NULL""")
        assert cursor.rowcount == 10_000
        cursor.execute("ANALYZE delaytasks_job")
        # All jobs that are due have one topic here. The planner cannot know that, and would sort the few it expects.
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        sql, times = lookups.ready_ids_sql("default")
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", ["t10", 8] * times)
        [[output]] = cursor.fetchall()
    read = [node for node in _all_nodes(output[0]["Plan"]) if node.get("Relation Name") == "delaytasks_job"]
    assert {node.get("Index Name") for node in read} == {"delaytasks_job_topic_due", "delaytasks_job_priority"}, output
    assert {node["Actual Rows"] for node in read} == {8}, output


def _all_nodes(tree):
    yield tree
    for child in tree.get("Plans", ()):
        yield from _all_nodes(child)


LISTED = {
    "all": ({}, "delaytasks_job_key"),
    "all, in another state": ({"state": State.CANCELLED}, "delaytasks_job_key"),
    "by key": ({"key_prefix": "k19"}, "delaytasks_job_key"),
    "by key and state": ({"key_prefix": "k19", "state": State.FINISHED}, "delaytasks_job_key"),
    "delayed": ({"state": State.DELAYED}, "delaytasks_job_topic_due"),
    "ready": ({"state": State.READY}, "delaytasks_job_topic_due"),
    "reserved": ({"state": State.RESERVED}, "delaytasks_job_topic_due"),
    "due soon": (
        {"state": State.DELAYED, "due_until": clock.from_ms(4_000_000_000_000)},
        "delaytasks_job_topic_due",
    ),
    "dead": ({"state": State.DEAD}, "delaytasks_job_topic_dead"),
}


@pytest.mark.parametrize("listed", LISTED)
def test_a_page_of_jobs_scans_its_index_in_order(listed, table, monkeypatch):
    """Neither the first page nor the next sorts, where a topic has far more rows than a page reads."""
    terms, index = LISTED[listed]
    wanted = JobFilter(dialects.database_now("default"), ("t1", "t7"), **terms)
    monkeypatch.setattr(pagination, "ROUNDS", (50,))
    _ids, following = pagination.find_by_topic("default", wanted, "", 20)
    for cursor in {"", following}:
        with counts.by_index("default"):  # as a page is read
            plans = plans_of(lambda cursor=cursor: pagination.find_by_topic("default", wanted, cursor, 20))
        for plan in plans:
            assert set(plan.indexes) <= {index, "delaytasks_job_dead"}, str(plan)  # so few are dead that either will do
            assert "Sort" not in plan.types, str(plan)


def test_a_claim_changes_no_index(table):
    """Claims stay heap-only updates: no index of the table has a column that a claim writes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'delaytasks_job'")
        definitions = " ".join(row[0] for row in cursor.fetchall())
    assert not any(column in definitions for column in ("attempt", "reserved_at", "lease_until", "worker"))


def test_the_claims_of_a_group_are_heap_only(table):
    """Although its jobs fill whole pages: each page has room for a second version of its rows."""
    delaytasks.schedule_many({"topic": "order.close", "key": f"fresh-{n}", "delay": 0} for n in range(400))
    ids = list(Job.objects.filter(key__startswith="fresh-").values_list("id", flat=True))

    def updates():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'delaytasks_job'"
            )
            return cursor.fetchone()

    before = updates()
    claimed = transitions.claim("default", "order.close", ids, "celery@worker-12.example.com/12345", grouped=True)
    after = updates()
    assert len(claimed) == after[0] - before[0] == 400
    assert after[1] - before[1] >= 390  # the first page had other rows


def test_the_retention_reads_a_page_of_jobs_by_their_ids(table):
    moment = dialects.get_dialect("default").moment(0)
    plan = explain(retention.ended_sql("default"), [150_000, 2_000, moment])
    assert not plan.scans("delaytasks_job"), plan
    assert "delaytasks_job_pkey" in plan.indexes


def test_the_retention_finds_the_events_of_deleted_jobs_by_their_index(table):
    jobs = [retention.EndedJob(n, "t", "k", 4, 0) for n in range(1, 301)]
    [plan] = [each for each in plans_of(lambda: retention.delete_jobs("default", jobs)) if "DELETE" in each.sql]
    assert not plan.scans("delaytasks_job"), plan
