"""A table of its own for each test that changes schemas: parcels, created and altered by Django's migrations."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, migrations, models
from django.db.migrations.state import ProjectState

from delaytasks.timeouts.triggers import statements
from delaytasks.timeouts.triggers.statements import WatchedTable

PARCEL = WatchedTable("parcels_parcel", "id", ("due_at", "state"))


class Schema:
    """An app "parcels", whose state and tables are changed by operations of migrations."""

    def __init__(self) -> None:
        self.state = ProjectState()

    def apply(self, *operations: migrations.operations.base.Operation) -> None:
        """Run the operations, as the command `migrate` does."""
        for operation in operations:
            before, self.state = self.state, self.state.clone()
            operation.state_forwards("parcels", self.state)
            with connection.schema_editor() as editor:
                operation.database_forwards("parcels", editor, before, self.state)

    def model(self, name: str = "parcel") -> Any:
        return self.state.apps.get_model("parcels", name)


class OtherSession:
    """A connection with an open transaction (PostgreSQL)."""

    def __init__(self) -> None:
        self._connection = connection.copy()

    def execute(self, sql: str) -> None:
        self._connection.set_autocommit(False)
        with self._connection.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def other_session(transactional_db: None) -> Iterator[OtherSession]:
    session = OtherSession()
    yield session
    session.close()


@pytest.fixture
def schema(transactional_db: None) -> Iterator[Schema]:
    """The app "parcels" with its model Parcel. Its tables and all triggers are dropped after the test."""
    before = set(connection.introspection.table_names())
    schema = Schema()
    schema.apply(
        migrations.CreateModel(
            "Parcel",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("state", models.CharField(max_length=10, default="open")),
                ("due_at", models.DateTimeField(null=True)),
                ("weight", models.IntegerField(default=0)),
            ],
        )
    )
    yield schema
    statements.remove_all(connection)
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        for table in set(connection.introspection.table_names()) - before:
            cursor.execute(f"DROP TABLE {quote(table)}")


@pytest.fixture
def parcels(schema: Schema) -> Any:
    """The model Parcel; its table has triggers."""
    statements.create(connection, PARCEL)
    return schema.model()
