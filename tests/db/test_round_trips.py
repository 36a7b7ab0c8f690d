"""A statement that is alone in its transaction commits itself, without the round trips of BEGIN and COMMIT."""

import psycopg
import pytest
from django.db import DataError, OperationalError, connection, transaction

from delaytasks.db import dialects
from delaytasks.models import Topic

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("transactional_db")]
INSERT = "INSERT INTO delaytasks_topic (name, paused, slots) VALUES (%s, false, '{}')"


def test_a_transaction_begins_with_its_first_statement() -> None:
    with transaction.atomic():
        assert not dialects.has_begun("default")
        Topic.objects.exists()
        assert dialects.has_begun("default")


@pytest.mark.parametrize("savepoint", [True, False])
def test_a_block_inside_another_block_may_not_commit(savepoint: bool) -> None:
    with transaction.atomic(), transaction.atomic(savepoint=savepoint):
        assert dialects.has_begun("default")


def test_without_a_block_or_a_connection_nothing_may_commit_itself() -> None:
    assert dialects.has_begun("default")
    connection.close()
    assert dialects.has_begun("default")


def test_the_statement_is_committed_at_once_and_the_callbacks_run_at_the_end_of_the_block() -> None:
    called: list[bool] = []
    with transaction.atomic():
        transaction.on_commit(lambda: called.append(True))
        with dialects.autocommit("default"):
            dialects.run(
                "default", "INSERT INTO delaytasks_topic (name, paused, slots) VALUES (%s, false, '{}')", ["t"]
            )
        assert committed("t")
        assert not called
        assert not connection.connection.autocommit
    assert called
    assert connection.connection.autocommit


def committed(topic: str) -> bool:
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}) as other:
        return other.execute("SELECT 1 FROM delaytasks_topic WHERE name = %s", [topic]).fetchone() is not None


def test_a_failed_statement_leaves_the_connection_usable() -> None:
    with pytest.raises(DataError), transaction.atomic(), dialects.autocommit("default"):
        dialects.run("default", "SELECT 1 / 0", [])
    assert connection.connection.autocommit
    assert not committed("t")


def test_a_lost_connection_raises_its_own_error() -> None:
    with pytest.raises(OperationalError), transaction.atomic(), dialects.autocommit("default"):
        dialects.run("default", "SELECT pg_terminate_backend(pg_backend_pid())", [])
    assert not committed("t")
