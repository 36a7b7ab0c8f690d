"""The next run of a job that is scheduled again while its handler is running, and the leases of touched jobs.

All columns have defaults in the database, so that processes of the older version can insert jobs. The index has the
few jobs whose next run an older worker left behind; it is created without blocking writes on PostgreSQL.
"""

import django.core.serializers.json
from django.db import migrations, models
from django.db.models import Q

from ._online import AddIndexOnline, in_transaction


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("delaytasks", "0020_poll_and_expiry")]

    operations = [
        in_transaction(
            migrations.AddField("job", "again", models.BooleanField(default=False, db_default=False, editable=False))
        ),
        in_transaction(
            migrations.AddField("job", "again_due_at", models.DateTimeField("runs again at", null=True, editable=False))
        ),
        in_transaction(migrations.AddField("job", "again_ttr_ms", models.BigIntegerField(null=True, editable=False))),
        in_transaction(
            migrations.AddField("job", "again_expires_ms", models.BigIntegerField(null=True, editable=False))
        ),
        in_transaction(
            migrations.AddField(
                "job",
                "again_body",
                models.JSONField(null=True, encoder=django.core.serializers.json.DjangoJSONEncoder, editable=False),
            )
        ),
        AddIndexOnline("job", models.Index(fields=["id"], condition=Q(again=True), name="delaytasks_job_again")),
        in_transaction(
            migrations.CreateModel(
                name="Touch",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("job_id", models.BigIntegerField()),
                    ("attempt", models.IntegerField()),
                    ("lease_until", models.DateTimeField()),
                ],
                options={
                    "verbose_name": "touch",
                    "verbose_name_plural": "touches",
                    "default_permissions": (),
                    "constraints": [
                        models.UniqueConstraint(fields=["job_id", "attempt"], name="delaytasks_touch_attempt"),
                    ],
                },
            )
        ),
    ]
