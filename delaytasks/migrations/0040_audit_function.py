"""PostgreSQL: the function of the audit log's triggers reads the log itself, not a temporary table of that name.

Blocks no reads and writes.
"""

from django.db import migrations, router

from delaytasks.db import audit_triggers

HINTS = {"model_name": "auditentry"}  # without it, Django would ask a router that decides by model without a model


def replace_function(apps, schema_editor):
    connection = schema_editor.connection
    if router.allow_migrate_model(connection.alias, apps.get_model("delaytasks", "AuditEntry")):
        audit_triggers.replace_function(connection)


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0039_check_constraints")]

    operations = [migrations.RunPython(replace_function, migrations.RunPython.noop, hints=HINTS)]
