"""The priority of a job. The column has a default in the database: processes of the older version insert jobs.

0032 validates the constraint and creates the index.
"""

from django.db import migrations, models
from django.db.models import Q

from ._online import AddCheckNotValid


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0030_finite_due_times")]

    operations = [
        migrations.AddField(
            "job", "priority", models.SmallIntegerField(db_default=0, default=0, verbose_name="priority")
        ),
        AddCheckNotValid(
            "job",
            models.CheckConstraint(condition=Q(priority__gte=0, priority__lte=9), name="delaytasks_job_priority_known"),
        ),
    ]
