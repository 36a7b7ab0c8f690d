"""The row of a schedule's run has no foreign key in the database, so that nothing waits for a running handler.

PostgreSQL drops the constraint at once, but only while no handler of a schedule with running="skip" or "queue" runs in
a transaction. It waits for five seconds; then the migration fails, and can be repeated.
"""

import django.db.models.deletion
from django.db import migrations, models

from ._online import limit_waiting

HINTS = {"model_name": "schedulerun"}  # without it, Django would ask a router that decides by model without a model


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0027_producer_index")]

    operations = [
        migrations.RunPython(limit_waiting, migrations.RunPython.noop, hints=HINTS),
        migrations.AlterField(
            model_name="schedulerun",
            name="schedule",
            field=models.OneToOneField(
                db_constraint=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                primary_key=True,
                related_name="run",
                serialize=False,
                to="delaytasks.schedule",
            ),
        ),
        # The first operation if the migration is reversed:
        migrations.RunPython(migrations.RunPython.noop, limit_waiting, hints=HINTS),
    ]
