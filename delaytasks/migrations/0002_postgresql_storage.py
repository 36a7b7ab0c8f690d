"""PostgreSQL only: room in each page of the job table, so that claims stay heap-only updates."""

from django.db import migrations, router

HINTS = {"model_name": "job"}  # without it, Django would ask a router that decides by model without a model


def execute(sql):
    def change(apps, schema_editor):
        connection = schema_editor.connection
        is_here = router.allow_migrate_model(connection.alias, apps.get_model("delaytasks", "Job"))
        if is_here and connection.vendor == "postgresql":
            schema_editor.execute(sql)

    return change


LEAVE_ROOM = execute("ALTER TABLE delaytasks_job SET (fillfactor = 80)")
FILL_UP = execute("ALTER TABLE delaytasks_job RESET (fillfactor)")


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0001_initial")]

    operations = [migrations.RunPython(LEAVE_ROOM, FILL_UP, hints=HINTS)]
