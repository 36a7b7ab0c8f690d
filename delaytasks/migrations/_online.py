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
    """Validate a check that was added NOT VALID on PostgreSQL, without blocking writes. Can be repeated.

    backwards   validate only when the migration is reversed
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, model_name, name, *, backwards=False):
        self.model_name, self.name, self.backwards = model_name, name, backwards

    def state_forwards(self, app_label, state):
        pass

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if not self.backwards:
            self.validate(app_label, schema_editor, to_state)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        if self.backwards:
            self.validate(app_label, schema_editor, to_state)

    def validate(self, app_label, schema_editor, to_state):
        model = to_state.apps.get_model(app_label, self.model_name)
        if schema_editor.connection.vendor == "postgresql" and self.allow_migrate_model(
            schema_editor.connection.alias, model
        ):
            table, name = (schema_editor.quote_name(each) for each in (model._meta.db_table, self.name))
            schema_editor.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")

    def describe(self):
        return f"Validate constraint {self.name} on model {self.model_name}"


class ReplaceChecks(Operation):
    """Replace check constraints by one: on PostgreSQL in one short statement, on SQLite with one copy of the table.

    On PostgreSQL the new one must exist already. Reversed, the former ones are added NOT VALID there: put
    ValidateCheck(..., backwards=True) in the migration before.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, model_name, replaced, constraint):
        self.model_name, self.replaced, self.constraint = model_name, replaced, constraint

    def state_forwards(self, app_label, state):
        for each in self.replaced:
            state.remove_constraint(app_label, self.model_name, each.name)
        state.add_constraint(app_label, self.model_name, self.constraint)

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        drops = [f"DROP CONSTRAINT {schema_editor.quote_name(each.name)}" for each in self.replaced]
        self.alter(app_label, schema_editor, to_state, lambda model: ", ".join(drops))

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        def additions(model):
            created = [str(each.create_sql(model, schema_editor)) for each in self.replaced]
            return ", ".join(f"{sql[sql.index(' ADD ') :]} NOT VALID" for sql in created)

        self.alter(app_label, schema_editor, to_state, additions)

    def alter(self, app_label, schema_editor, to_state, changes):
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        if schema_editor.connection.vendor == "postgresql":
            table = schema_editor.quote_name(model._meta.db_table)
            schema_editor.execute(f"ALTER TABLE {table} {changes(model)}", params=None)
        else:
            schema_editor._remake_table(model)

    def describe(self):
        return f"Replace {len(self.replaced)} constraints on model {self.model_name} by {self.constraint.name}"


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
