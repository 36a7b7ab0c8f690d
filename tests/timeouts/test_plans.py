"""Reconciliation reads tables by their indexes, also when they are large and their statistics are old."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Q

from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.timeouts import reconcile, renames, statements
from delaytasks.timeouts.declarations import Declaration
from tests.support.query_plans import plans_of

from .app.models import Order
from .conftest import START

ROWS = 60_000


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize("analyzed", [True, False])
def test_a_page_of_reconciliation_scans_no_table(declare: Callable[..., Declaration], analyzed: bool) -> None:
    close = declare(Order, after="window", while_=Q(state="open"))
    with connection.cursor() as cursor:
        empty_tables(cursor)
        cursor.execute(f"""
            INSERT INTO declared_order (state, created_at, "window", note)
            SELECT 'open', now(), '30 min', '' FROM generate_series(1, {ROWS})""")
        cursor.execute("""
            INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker,
                error, ended_at, declared_due)
            SELECT 'declared.close', 'order:' || id, 4 - 3 * live, created_at + "window", 1000, '{}', now(), 1, 0,
                '', '', CASE WHEN live = 0 THEN now() END, date_trunc('milliseconds', created_at + "window" + '999us')
            FROM declared_order, generate_series(0, 1) AS live WHERE id % 100 > 0 OR live = 0""")
        if analyzed:
            cursor.execute("ANALYZE delaytasks_job, declared_order")
    middle = str(Order.objects.order_by("pk")[ROWS // 2].pk)
    Order.objects.filter(pk=int(middle) + 5).update(state="paid")  # whose job is cancelled
    Order.objects.filter(pk=int(middle) + 6).update(window=None)
    Order.objects.filter(pk=int(middle) + 7).update(window="0:45:00")
    plans = []
    for phase, position in ((reconcile.ROWS, middle), (reconcile.JOBS, f"order:{middle}")):
        plans += plans_of(lambda phase=phase, position=position: reconcile.next_page(close, "default", phase, position))
    assert len(plans) >= 8
    for plan in plans:
        assert not plan.scans("delaytasks_job"), str(plan)
        assert not plan.scans("declared_order"), str(plan)


def empty_tables(cursor: Any) -> None:
    """Empty the tables, and forget what autovacuum has learned from the rows of earlier tests: ANALYZE keeps that."""
    cursor.execute("TRUNCATE delaytasks_job, declared_order CASCADE")
    for table in ("delaytasks_job", "declared_order"):
        cursor.execute("DELETE FROM pg_statistic WHERE starelid = %s::regclass", [table])


def add_jobs(topic: str, *, live: bool) -> None:
    """A job for each of 26,000 orders, in order; no live one for every hundredth."""
    state = State.DELAYED if live else State.FINISHED
    with connection.cursor() as cursor:
        cursor.execute(f"""
            INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker,
                error, ended_at, declared_due)
            SELECT '{topic}', 'order:' || id, {state}, now(), 1000, '{{}}', now(), 1, 0, '', '',
                {"NULL" if live else "now()"}, timestamptz '{START}'
            FROM generate_series(1, 26000) AS id WHERE NOT ({live} AND id % 100 = 0)""")


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize("before", [False, True], ids=["of an empty table", "older than the topic"])
def test_statistics_that_lack_the_topic_do_not_make_a_page_read_all_its_live_jobs(
    declare: Callable[..., Declaration], before: bool
) -> None:
    """As after `apply`, or a burst of marks: to PostgreSQL, 26,000 live jobs look like a single one."""
    close = declare(Order)
    with connection.cursor() as cursor:
        empty_tables(cursor)
        if before:
            add_jobs("another.topic", live=False)
        cursor.execute("ANALYZE delaytasks_job, declared_order")
    add_jobs("declared.close", live=True)
    Order.objects.bulk_create([Order(pk=pk, created_at=START) for pk in range(12_001, 13_001)])
    read = jobs_read()
    reconcile.next_page(close, "default", reconcile.ROWS, "12000")
    reconcile.next_page(close, "default", reconcile.JOBS, "order:12000")
    assert 1_000 < jobs_read() - read < 10_000


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize("analyzed", [True, False])
def test_a_page_reads_the_history_of_a_key_only_if_it_has_no_live_job(
    declare: Callable[..., Declaration], analyzed: bool
) -> None:
    close = declare(Order)
    with connection.cursor() as cursor:
        empty_tables(cursor)
        cursor.execute("ANALYZE delaytasks_job, declared_order")
    for number in (12_500, 12_501):  # the first of them has no live job
        add_history("declared.close", f"order:{number}", 1_000)
    add_jobs("declared.close", live=True)
    Order.objects.bulk_create([Order(pk=pk, created_at=START) for pk in range(12_001, 13_001)])
    if analyzed:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE delaytasks_job, declared_order")
    keys = [(str(pk), pk) for pk in range(12_001, 13_001)]
    read = jobs_read()
    found = statements.differences(close, keys, "default", gated=False)
    assert {each.change for each in found} == {"make"}
    assert len(found) == 9, "all keys without a live job, except the one whose job has run"
    assert 1_900 < jobs_read() - read < 2_100


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
@pytest.mark.usefixtures("automatic")
def test_renaming_the_jobs_of_a_model_searches_each_new_key(declare: Callable[..., Declaration]) -> None:
    """Even if the statistics lack the topic."""
    close = declare(Order)
    with connection.cursor() as cursor:
        empty_tables(cursor)
        cursor.execute("ANALYZE delaytasks_job, declared_order")
        for live in (False, True):
            add_jobs("declared.close", live=live)
        cursor.execute(
            "UPDATE delaytasks_job SET subject_label = 'declared.purchase', key = 'purchase:' || substr(key, 7)"
        )
    read = jobs_read()
    renames.rename_jobs(close, "default")
    assert jobs_read() - read < 200_000, "26,000 live jobs and as many ended ones"
    assert set(Job.objects.values_list("subject_label", flat=True)) == {close.label}
    assert not Job.objects.exclude(key__startswith="order:").exists()


def add_history(topic: str, key: str, count: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"""
            INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker,
                error, ended_at, declared_due)
            SELECT '{topic}', '{key}', {State.FINISHED}, now(), 1000, '{{}}', now(), 1, 0, '', '', now(),
                timestamptz '{START}'
            FROM generate_series(1, {count})""")


def jobs_read() -> int:
    """Return how many jobs this transaction has read from the table, by scans and through indexes."""
    sql = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'delaytasks_job'"
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])


@pytest.mark.only_on("sqlite")
@pytest.mark.django_db
@pytest.mark.usefixtures("automatic")
def test_the_comparison_searches_jobs_by_topic_and_key(declare: Callable[..., Declaration], db_clock: Any) -> None:
    close = declare(Order, after="window")
    sql, params = statements.differences_sql(close, [(str(n), n) for n in range(1000)], "default", gated=False)
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + sql, params)
        plan = [row[3] for row in cursor.fetchall()]
    assert not [line for line in plan if line.startswith(("SCAN job", "SCAN live", "SCAN latest", "SCAN declared"))], (
        plan
    )
    assert Job.objects.count() == 0
