"""Declared timeouts: the declared due time of a job, and the declarations that were applied."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0017_topic_held"),
    ]

    operations = [
        migrations.AddField("job", "declared_due", models.DateTimeField(editable=False, null=True)),
        migrations.CreateModel(
            name="Declaration",
            fields=[
                (
                    "topic",
                    models.CharField(max_length=100, primary_key=True, serialize=False),
                ),
                ("fingerprint", models.CharField(max_length=64)),
                ("applied_at", models.DateTimeField()),
                (
                    "overdue",
                    models.CharField(
                        choices=[("run", "run"), ("skip", "skip"), ("spread", "spread")],
                        default="run",
                        help_text="what was due before it was applied",
                        max_length=6,
                    ),
                ),
                ("spread_until", models.DateTimeField(null=True)),
                ("phase", models.CharField(default="", max_length=4)),
                ("position", models.TextField(default="")),
                ("began_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name": "declared timeout",
                "verbose_name_plural": "declared timeouts",
                "default_permissions": (),
            },
        ),
    ]
