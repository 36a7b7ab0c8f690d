"""Operations for migrations that run while processes of the site write.

Some are not one transaction, because PostgreSQL creates an index online only outside one.
"""

from django.db import migrations
from django.db.migrations.operations.base import Operation


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


class AddCheckNotValid(migrations.AddConstraint):
    """AddConstraint of a check that on PostgreSQL reads no rows. Let ValidateCheck follow, in another transaction."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor != "postgresql":
            return super().database_forwards(app_label, schema_editor, from_state, to_state)
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.execute(f"{self.constraint.create_sql(model, schema_editor)} NOT VALID", params=None)


class ValidateCheck(Operation):
    """Validate a check of AddCheckNotValid on PostgreSQL, without blocking writes. Can be repeated."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, model_name, name):
        self.model_name, self.name = model_name, name

    def state_forwards(self, app_label, state):
        pass

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        model = to_state.apps.get_model(app_label, self.model_name)
        if schema_editor.connection.vendor == "postgresql" and self.allow_migrate_model(
            schema_editor.connection.alias, model
        ):
            table, name = (schema_editor.quote_name(each) for each in (model._meta.db_table, self.name))
            schema_editor.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        pass

    def describe(self):
        return f"Validate constraint {self.name} on model {self.model_name}"


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
