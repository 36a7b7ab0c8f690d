"""Migrations that are not one transaction: they lose no row that a process of the site writes, and can be repeated."""

from importlib import import_module

import pytest
from django.db import connection
from django.db.migrations import AddIndex, Migration, RunPython
from django.db.migrations.loader import MigrationLoader

NAME = "0027_producer_index"


def not_atomic() -> list[Migration]:
    migrations = MigrationLoader(None).disk_migrations.values()
    return [each for each in migrations if each.app_label.startswith("delaytasks") and not each.atomic]


@pytest.mark.parametrize("migration", not_atomic(), ids=str)
def test_an_operation_that_may_copy_a_table_has_a_transaction(migration: Migration) -> None:
    """SQLite copies the table, drops it and renames the copy."""
    without = [operation for operation in migration.operations if not operation.atomic]
    assert all(isinstance(operation, AddIndex | RunPython) for operation in without), without


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_the_index_of_producers_is_created_again_after_a_try_that_failed() -> None:
    """The index is there, and invalid; the migration is not recorded."""
    module = import_module(f"delaytasks.migrations.{NAME}")
    state = MigrationLoader(connection).project_state(("delaytasks", "0026_inbox"))
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = CAST('delaytasks_job_producer' AS regclass)"
        )
        with connection.schema_editor(atomic=False) as editor:
            module.Migration(NAME, "delaytasks").apply(state, editor)
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = CAST('delaytasks_job_producer' AS regclass)")
        assert cursor.fetchone() == (True,)
