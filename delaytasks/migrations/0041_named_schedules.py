"""An index of the schedules that have a name of their own, so that they are read without the series."""

from django.db import migrations, models
from django.db.models import Q

from ._online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("delaytasks", "0040_audit_function")]

    operations = [
        AddIndexOnline(
            "schedule",
            models.Index(
                fields=["name"],
                condition=Q(series_key__isnull=True),
                name="delaytasks_schedule_named",
            ),
        ),
    ]
