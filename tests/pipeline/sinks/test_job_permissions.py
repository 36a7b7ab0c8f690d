"""Loading a chunk into a PostgreSQL that lacks a privilege or is configured differently. No Spark."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from django.db import connection

from delaytasks.models import Job, LoadChunk
from delaytasks.pipeline.sinks import ledger
from delaytasks.pipeline.sinks.inserts import load_chunk
from delaytasks.pipeline.sinks.jobs import Chunk, Run
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables.lake import Lake

RUN = Run("r1", "stamp", "reject")


def test_data_is_sent_as_utf8_whatever_the_environment_says(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    assert load_chunk(database, lake, RUN, chunk("Zoë"))
    assert Job.objects.get().key == "Zoë"


@pytest.fixture
def limited(database: Database) -> Iterator[Database]:
    """A user with SELECT only."""
    who = "delaytasks_onlooker"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {who} LOGIN")
        cursor.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {who}")
    yield replace(database, user=who, password="")
    with connection.cursor() as cursor:
        cursor.execute(f"GRANT TEMPORARY ON DATABASE {database.name} TO PUBLIC")
        cursor.execute(f"DROP OWNED BY {who}")
        cursor.execute(f"DROP ROLE {who}")


def test_a_missing_write_privilege_is_reported_with_all_that_a_load_needs(
    database: Database, limited: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    made = chunk("a")

    def refusal(of: Database) -> str:
        message = ledger._load_chunk(of, lake, RUN, made)
        assert "A load needs the primary server, SELECT, INSERT and UPDATE on delaytasks_job, " in message
        return message

    assert f"refuses the user {limited.user}: permission denied for table delaytasks_loadchunk" in refusal(limited)
    with connection.cursor() as cursor:
        cursor.execute(f"GRANT INSERT, UPDATE ON delaytasks_loadchunk TO {limited.user}")
        assert "permission denied for table delaytasks_job" in refusal(limited)
        cursor.execute(f"REVOKE TEMPORARY ON DATABASE {database.name} FROM PUBLIC")
        assert "permission denied to create temporary tables" in refusal(limited)
    standby = replace(database, libpq='{"options": "-c default_transaction_read_only=on"}')
    assert "cannot execute INSERT in a read-only transaction" in refusal(standby)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE delaytasks_job ADD CONSTRAINT none_for_now CHECK (key <> 'a')")
    try:
        assert 'Chunk 0 could not be loaded: new row for relation "delaytasks_job" violates' in ledger._load_chunk(
            database, lake, RUN, made)  # fmt: skip
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE delaytasks_job DROP CONSTRAINT none_for_now")
    assert not LoadChunk.objects.exists()
