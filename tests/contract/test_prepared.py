"""PostgreSQL plans what the engine asks again and again once for each connection, and not where that cannot be."""

import time

import pytest
from django.db import connection, transaction

from delaytasks import cancel, dialect, schedule
from delaytasks.models import Job

pytestmark = pytest.mark.only_on("postgresql")


def prepared() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        return cursor.fetchone()[0]


@pytest.fixture(autouse=True)
def _a_new_connection() -> None:
    connection.close()


def test_a_statement_is_planned_once_however_often_and_about_however_many_it_is_asked() -> None:
    for ids in ([1], [1, 2], [7], list(range(70_000, 70_300))):
        these, params = dialect.of("default").among("id", ids)
        dialect.run("default", f"SELECT id FROM delaytasks_job WHERE {these}", params)
    assert prepared() == 1


@pytest.mark.parametrize(
    ("setting", "value"), [("DISABLE_SERVER_SIDE_CURSORS", True), ("OPTIONS", {"prepare_threshold": None})]
)
def test_behind_a_pooler_nothing_is_prepared(monkeypatch, setting: str, value: object) -> None:
    monkeypatch.setitem(connection.settings_dict, setting, value)
    for _ in range(3):
        schedule("order.close", key="k", delay=60)
        assert cancel("order.close", key="k").name == "CANCELLED"
    assert prepared() == 0


def test_of_a_single_row_the_size_of_its_numbers_changes_no_plan() -> None:
    for delay in (30, 40, 4_000_000):
        schedule("order.close", key=f"{delay}", delay=delay)
    assert prepared() == 1


def test_a_plan_does_not_outlive_its_minute(monkeypatch) -> None:
    """Or one that was made for an empty table would read the whole of it when it is full."""
    monkeypatch.setattr(dialect, "PLANNED_SECONDS", 10**9)
    for _ in range(3):
        dialect.run("default", "SELECT 1", [])
    assert prepared() == 1
    monkeypatch.setattr(dialect, "PLANNED_SECONDS", time.monotonic() / 3)
    for _ in range(3):
        dialect.run("default", "SELECT 1", [])
    assert prepared() == 2, "another minute, another text"


def test_the_connections_own_way_of_preparing_is_left_as_it_was() -> None:
    connection.ensure_connection()
    connection.connection.prepare_threshold = 7
    dialect.run("default", "SELECT 1", [])
    assert connection.connection.prepare_threshold == 7


def test_a_broken_transaction_is_told_as_django_tells_it() -> None:
    with pytest.raises(transaction.TransactionManagementError), transaction.atomic():
        connection.needs_rollback = True
        schedule("order.close", key="k", delay=60)
    assert not Job.objects.exists()


@pytest.mark.parametrize("key", ['quo"ted', "back\\slash", "com,ma", "{braces}", "NULL", "None", "", "ü 中", "a\nb"])
def test_any_text_passes_through_an_array(key: str) -> None:
    table, params = dialect.of("default").table(["bigint", "text"], [(1, key), (None, "other")])
    assert dialect.run("default", table, params) == [(1, key), (None, "other")]


def test_a_nul_is_refused_and_shifts_nothing() -> None:
    with pytest.raises(ValueError, match="NUL"):
        dialect.of("default").table(["text"], [("a\0b",), ("c",)])
