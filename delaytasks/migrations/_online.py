"""Operations for migrations that run while processes of the site write.

Some are not one transaction, because PostgreSQL creates an index online only outside one.
"""

from django.db import migrations


class AddIndexOnline(migrations.AddIndex):
    """AddIndex that on PostgreSQL does not block writes to the table, and can be repeated after a failure."""

    atomic = False

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            if schema_editor.connection.vendor == "postgresql":  # an invalid one, of a try that failed
                name = schema_editor.quote_name(self.index.name)
                schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            schema_editor.add_index(model, self.index, **_concurrently(schema_editor))

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.remove_index(model, self.index, **_concurrently(schema_editor))


def _concurrently(schema_editor):
    return {"concurrently": True} if schema_editor.connection.vendor == "postgresql" else {}


def in_transaction(operation):
    """Return the operation, with a transaction of its own.

    SQLite changes a column by copying the table. Without a transaction, rows that a process inserts meanwhile would be
    lost, and for a moment there would be no table.
    """
    operation.atomic = True
    return operation


def limit_waiting(apps, schema_editor):
    """Wait at most five seconds for each lock of this transaction: whoever comes later waits behind the migration."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("SET LOCAL lock_timeout = '5s'")
