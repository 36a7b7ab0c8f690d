"""PostgreSQL refuses due times that Python cannot read: one job with `infinity` kept all others from running.

The constraint is for rows that are written from now on, so adding it reads no row.
"""

from django.db import migrations, router

from ._online import limit_waiting

RANGE = "BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'"


def add_constraint(apps, schema_editor):
    if _is_concerned(apps, schema_editor):
        schema_editor.execute(
            "ALTER TABLE delaytasks_job ADD CONSTRAINT delaytasks_job_due_readable "
            f"CHECK (due_at {RANGE} AND declared_due {RANGE}) NOT VALID"
        )


def remove_constraint(apps, schema_editor):
    if _is_concerned(apps, schema_editor):
        schema_editor.execute("ALTER TABLE delaytasks_job DROP CONSTRAINT delaytasks_job_due_readable")


def _is_concerned(apps, schema_editor):
    connection = schema_editor.connection
    is_here = router.allow_migrate_model(connection.alias, apps.get_model("delaytasks", "Job"))
    return is_here and connection.vendor == "postgresql"


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0029_known_runs")]

    operations = [
        migrations.RunPython(limit_waiting, migrations.RunPython.noop),
        migrations.RunPython(add_constraint, remove_constraint),
        # The first operation if the migration is reversed:
        migrations.RunPython(migrations.RunPython.noop, limit_waiting),
    ]
