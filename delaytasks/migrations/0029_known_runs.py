"""What a backfill must know to repeat no run: former names of schedules, and up to when their runs are not known.

Adds columns with defaults and an index of small tables.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0028_schedule_run")]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="former_names",
            field=models.TextField(db_default="", default="", editable=False),
        ),
        migrations.AddField(
            model_name="schedule",
            name="runs_unknown_until",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="topic",
            name="runs_deleted_until",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("former_names", ""), _negated=True),
                fields=["topic"],
                name="delaytasks_schedule_renamed",
            ),
        ),
    ]
