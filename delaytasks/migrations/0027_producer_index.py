"""The index of each producer's live jobs. It is created without blocking writes.

It is a migration of its own, so that it can be repeated: after a failure, nothing of it is left but an invalid index.
"""

from django.db import migrations, models
from django.db.models import Q

from ._online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("delaytasks", "0026_inbox")]

    operations = [
        AddIndexOnline(
            "job",
            models.Index(
                fields=["producer"],
                condition=Q(producer__isnull=False, ended_at__isnull=True),
                name="delaytasks_job_producer",
            ),
        ),
    ]
