"""The columns of a claim (whether the job runs in a group, and whether it must run alone) and the rows of workers."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0011_field_names")]

    operations = [
        migrations.AddField("job", "grouped", models.BooleanField(default=False, db_default=False, editable=False)),
        migrations.AddField("job", "alone", models.BooleanField(default=False, db_default=False, editable=False)),
        migrations.AddField("job", "fenceable", models.BooleanField(default=False, db_default=False, editable=False)),
        migrations.AlterField(
            "jobevent",
            "outcome",
            models.CharField(
                choices=[
                    ("scheduled", "scheduled"),
                    ("finished", "finished"),
                    ("failed", "failed"),
                    ("snoozed", "snoozed"),
                    ("released", "released"),
                    ("expired", "expired"),
                    ("rescheduled", "rescheduled"),
                    ("cancelled", "cancelled"),
                    ("skipped", "skipped"),
                    ("retried", "retried"),
                    ("dead", "dead"),
                ],
                max_length=12,
                verbose_name="outcome",
            ),
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("beat", models.BigIntegerField(default=0)),
            ],
            options={"verbose_name": "worker", "verbose_name_plural": "workers", "default_permissions": ()},
        ),
    ]
