"""PostgreSQL only: room in each page of the job table, so that claims stay heap-only updates."""

from django.db import migrations


def leave_room(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ALTER TABLE delaytasks_job SET (fillfactor = 80)")


def fill_up(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ALTER TABLE delaytasks_job RESET (fillfactor)")


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0001_initial")]

    operations = [migrations.RunPython(leave_room, fill_up)]
