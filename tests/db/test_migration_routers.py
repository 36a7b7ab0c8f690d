"""The migrations in a database that a router by model keeps free of our tables."""

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from delaytasks.db import audit_triggers

APPS = ("delaytasks", "delaytasks_api")


class Elsewhere:
    """A database router: the models of delaytasks have their tables in another database. Otherwise undecided."""

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        return False if app_label in APPS and model_name else None


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_a_database_without_our_tables_is_migrated(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DATABASE_ROUTERS = [Elsewhere()]
    monkeypatch.setattr(audit_triggers, "is_test_database", lambda connection: False)
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA elsewhere")
        cursor.execute("SET LOCAL search_path = elsewhere")
        newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
        MigrationExecutor(connection).migrate([node for node in newest if node[0] in APPS])
        tables = connection.introspection.table_names(cursor)
    assert "django_migrations" in tables
    assert not [name for name in tables if name.startswith(APPS)]
