"""PostgreSQL: pages of the job table have room for a second version of each row (decision 48).

Changes no row: pages that are filled from now on leave more room. Blocks no reads and writes.
"""

from django.db import migrations, router

from ._online import limit_waiting

HINTS = {"model_name": "job"}  # without it, Django would ask a router that decides by model without a model


def set_fillfactor(percent):
    def change(apps, schema_editor):
        connection = schema_editor.connection
        is_here = router.allow_migrate_model(connection.alias, apps.get_model("delaytasks", "Job"))
        if is_here and connection.vendor == "postgresql":
            schema_editor.execute(f"ALTER TABLE delaytasks_job SET (fillfactor = {percent})")

    return change


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0037_help_texts")]

    operations = [
        migrations.RunPython(limit_waiting, migrations.RunPython.noop, hints=HINTS),
        migrations.RunPython(set_fillfactor(40), set_fillfactor(80), hints=HINTS),
        # The first operation if the migration is reversed:
        migrations.RunPython(migrations.RunPython.noop, limit_waiting, hints=HINTS),
    ]
