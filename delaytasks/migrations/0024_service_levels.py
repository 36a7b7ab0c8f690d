"""Service levels: the clocks of rows, and the states of clocks that have ended. Adds two tables."""

import django.db.models.deletion
from django.db import migrations, models

STATES = [("running", "running"), ("paused", "paused"), ("stopped", "stopped")]


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0023_producer"),
    ]

    operations = [
        migrations.CreateModel(
            name="SlaClock",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("topic", models.CharField(max_length=100)),
                ("subject_label", models.CharField(max_length=201)),
                ("subject_pk", models.CharField(max_length=255)),
                ("state", models.CharField(choices=STATES, max_length=7)),
                ("since", models.DateTimeField()),
                ("noticed", models.BooleanField(default=False)),
                ("consumed_ms", models.BigIntegerField(default=0)),
                ("done_part", models.FloatField(default=0)),
                ("last_due", models.DateTimeField(null=True)),
                ("awaited_due", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name": "clock of a service level",
                "verbose_name_plural": "clocks of service levels",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "subject_label", "subject_pk"), name="delaytasks_slaclock_once_per_row"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SlaSegment",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("state", models.CharField(choices=STATES, max_length=7)),
                ("began_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField()),
                ("worked_ms", models.BigIntegerField()),
                ("noticed", models.BooleanField(default=False)),
                (
                    "clock",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="segments",
                        to="delaytasks.slaclock",
                    ),
                ),
            ],
            options={
                "verbose_name": "segment of a service level",
                "verbose_name_plural": "segments of service levels",
                "default_permissions": (),
            },
        ),
    ]
