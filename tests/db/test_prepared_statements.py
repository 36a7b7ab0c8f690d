"""The engine prepares its statements only where the project allows it, and changes no setting of a connection."""

import time
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, transaction

from delaytasks import cancel, schedule, schedule_many
from delaytasks.db import dialects
from delaytasks.models import Job

pytestmark = pytest.mark.only_on("postgresql")


def prepared_count() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        return cursor.fetchone()[0]


@pytest.fixture(autouse=True)
def _new_connection(transactional_db: None) -> None:
    connection.close()


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch, _new_connection: None) -> Any:
    """The project allows prepared statements, in the way that docs/howto/deploy.md describes."""
    options = connection.settings_dict.get("OPTIONS", {})
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options | {"prepare_threshold": 1})
    connection.close()
    yield
    connection.close()


def use_the_engine(stage: Any) -> None:
    stage.recorder("t")
    for key in "abcde":
        schedule("t", key, delay=60)
        assert cancel("t", key).name == "CANCELLED"
        schedule("t", key, delay=0)
    schedule_many([{"topic": "t", "key": f"{n}", "delay": 0} for n in range(3)])
    stage.go()


def test_by_default_nothing_is_prepared_and_no_setting_is_changed(stage, monkeypatch) -> None:
    changed: list[str] = []
    connection.ensure_connection()

    def set_attribute(raw: Any, name: str, value: object) -> None:
        changed.append(name)
        object.__setattr__(raw, name, value)

    monkeypatch.setattr(type(connection.connection), "__setattr__", set_attribute)
    use_the_engine(stage)
    assert connection.connection.prepare_threshold is None, "Django's default"
    assert prepared_count() == 0
    assert not {"prepare_threshold", "prepared_max", "isolation_level", "read_only", "cursor_factory"} & set(changed)


def test_where_the_project_allows_it_statements_are_prepared_and_no_setting_is_changed(stage, allowed) -> None:
    use_the_engine(stage)
    assert connection.connection.prepare_threshold == 1
    assert prepared_count() > 2


def test_a_statement_is_prepared_once_for_any_number_of_calls_and_rows(allowed) -> None:
    for ids in ([1], [1, 2], [7], list(range(70_000, 70_300))):
        condition, params = dialects.get_dialect("default").among("id", ids)
        dialects.run("default", f"SELECT id FROM delaytasks_job WHERE {condition}", params)
    assert prepared_count() == 1


def test_the_size_of_an_integer_does_not_need_another_plan(allowed) -> None:
    for delay in (30, 40, 4_000_000):
        schedule("order.close", key=f"{delay}", delay=delay)
    assert prepared_count() == 1


@pytest.fixture
def cursors(allowed, monkeypatch) -> list[Any]:
    """The cursors that the engine makes for its prepared statements."""
    made: list[Any] = []
    cursor_class = dialects._cursor_class()

    def make(raw: Any) -> Any:
        made.append(cursor_class(raw))
        return made[-1]

    monkeypatch.setattr(dialects, "_cursor_class", lambda: make)
    return made


def test_the_statements_of_a_connection_share_a_cursor(cursors) -> None:
    for number in range(3):
        assert dialects.run("default", "SELECT CAST(%s AS int), %s", [number, None]) == [(number, None)]
        assert dialects.run("default", "SELECT CAST(%s AS text), %s", [None, "a"]) == [(None, "a")]
    with pytest.raises(DataError):
        dialects.run("default", "SELECT 1 / 0", [])
    assert dialects.run("default", "UPDATE delaytasks_topic SET paused = false WHERE false", []) == []
    assert dialects.run("default", "SELECT generate_series(1, 3)", []) == [(1,), (2,), (3,)]
    assert len(cursors) == 1


def test_a_statement_that_is_executed_while_another_one_waits_has_another_cursor(cursors) -> None:
    """schedule_many() reads the caller's next jobs meanwhile, and their iterator may use the engine."""
    found: list[Any] = []

    def meanwhile() -> None:
        found.append(dialects.run("default", "SELECT 7", []))
        found.append(dialects.run("default", "UPDATE delaytasks_topic SET paused = false WHERE false", []))

    assert dialects.run("default", "SELECT generate_series(1, 3)", [], meanwhile) == [(1,), (2,), (3,)]
    assert found == [[(7,)], []]


def test_threads_that_share_a_connection_do_not_share_a_cursor(cursors) -> None:
    """Django's live test server shares connections. A thread must not read the rows of another one's statement."""
    connection.inc_thread_sharing()
    try:
        for number in range(2):
            assert dialects.run("default", "SELECT CAST(%s AS int)", [number]) == [(number,)]
    finally:
        connection.dec_thread_sharing()
    assert len(cursors) == 2


def test_a_new_connection_has_a_new_cursor(cursors) -> None:
    assert dialects.run("default", "SELECT 1", []) == [(1,)]
    with pytest.raises(OperationalError):
        dialects.run("default", "SELECT pg_terminate_backend(pg_backend_pid())", [])
    connection.close()
    assert dialects.run("default", "SELECT 2", []) == [(2,)]
    assert len(cursors) == 2


def test_the_driver_keeps_how_to_convert_a_statement_that_is_executed_again(cursors, monkeypatch) -> None:
    monkeypatch.setattr(dialects, "PLANNED_SECONDS", 10**9)
    used = set()
    for number in range(3):
        dialects.run("default", "".join(["SELECT CAST(%s", " AS int)"]), [number])  # another object each time
        used.add(id(cursors[0]._tx))
    assert len(used) == 1


def test_a_plan_is_replaced_after_some_seconds(allowed, monkeypatch) -> None:
    """Otherwise a plan for an empty table would scan the table after it has grown."""
    monkeypatch.setattr(dialects, "PLANNED_SECONDS", 10**9)
    for _ in range(3):
        dialects.run("default", "SELECT 1", [])
    assert prepared_count() == 1
    monkeypatch.setattr(dialects, "PLANNED_SECONDS", time.monotonic() / 3)
    for _ in range(3):
        dialects.run("default", "SELECT 1", [])
    assert prepared_count() == 2, "the text changes"


@pytest.mark.parametrize("prepares", [False, True])
def test_a_broken_transaction_raises_djangos_error(prepares: bool, request: pytest.FixtureRequest) -> None:
    if prepares:
        request.getfixturevalue("allowed")
    with pytest.raises(transaction.TransactionManagementError), transaction.atomic():
        connection.needs_rollback = True
        schedule("order.close", key="k", delay=60)
    assert not Job.objects.exists()


@pytest.mark.parametrize("key", ['quo"ted', "back\\slash", "com,ma", "{braces}", "NULL", "None", "", "ü 中", "a\nb"])
def test_any_text_is_escaped_correctly_in_an_array(key: str) -> None:
    table, params = dialects.get_dialect("default").table(["bigint", "text"], [(1, key), (None, "other")])
    assert dialects.run("default", table, params) == [(1, key), (None, "other")]


def test_a_nul_is_refused_and_does_not_shift_other_values() -> None:
    with pytest.raises(ValueError, match="NUL"):
        dialects.get_dialect("default").table(["text"], [("a\0b",), ("c",)])
