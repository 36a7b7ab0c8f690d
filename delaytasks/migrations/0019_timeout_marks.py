"""Marks of changed rows, written by optional triggers. New tables: nothing else is touched."""

from django.db import migrations, models

from delaytasks.timeouts.triggers import statements


def remove_triggers(apps, schema_editor):
    """Without the table that they append to, each change of a watched table would fail."""
    statements.remove_all(schema_editor.connection)


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0018_timeouts")]

    operations = [
        migrations.CreateModel(
            name="TimeoutMark",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("table_name", models.CharField(max_length=255)),
                ("row_pk", models.TextField(null=True)),
                ("position", models.JSONField(null=True)),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="TimeoutTrigger",
            fields=[("table_name", models.CharField(max_length=255, primary_key=True, serialize=False))],
            options={"default_permissions": ()},
        ),
        migrations.RunPython(migrations.RunPython.noop, remove_triggers),
    ]
