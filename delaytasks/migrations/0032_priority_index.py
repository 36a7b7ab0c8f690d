"""The index of live jobs of higher priorities. Neither it nor the validation of the constraint blocks writes.

It is a migration of its own, so that it can be repeated: after a failure, nothing of it is left but an invalid index.
"""

from django.db import migrations, models
from django.db.models import Q

from ._online import AddIndexOnline, ValidateCheck, in_transaction


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("delaytasks", "0031_priority")]

    operations = [
        in_transaction(ValidateCheck("job", "delaytasks_job_priority_known")),
        AddIndexOnline(
            "job",
            models.Index(
                fields=["topic", "priority", "due_at", "id"],
                condition=Q(ended_at__isnull=True, priority__gt=0),
                name="delaytasks_job_priority",
            ),
        ),
    ]
