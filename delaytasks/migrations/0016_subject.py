"""The subject of a job: two nullable columns, and an index of the jobs that have one.

The index is created without blocking writes on PostgreSQL, so this migration is not one transaction.
"""

from django.db import migrations, models
from django.db.models import Q

from ._online import AddIndexOnline, in_transaction


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("delaytasks", "0015_recurrence")]

    operations = [
        in_transaction(migrations.AddField("job", "subject_label", models.CharField(max_length=201, null=True))),
        in_transaction(migrations.AddField("job", "subject_pk", models.CharField(max_length=255, null=True))),
        AddIndexOnline(
            "job",
            models.Index(
                fields=["subject_label", "subject_pk", "id"],
                condition=Q(subject_pk__isnull=False),
                name="delaytasks_job_subject",
            ),
        ),
    ]
