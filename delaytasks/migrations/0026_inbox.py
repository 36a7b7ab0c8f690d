"""The messages that inboxes have stored. A new table: nothing else is touched."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0025_trace_context"),
    ]

    operations = [
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("inbox", models.CharField(max_length=100)),
                ("source", models.CharField(default="", max_length=255)),
                ("message_id", models.CharField(max_length=255)),
                ("digest", models.CharField(max_length=64)),
                ("received_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "message of an inbox",
                "verbose_name_plural": "messages of inboxes",
                "default_permissions": (),
                "indexes": [models.Index(fields=["received_at"], name="delaytasks_inboxmessage_age")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("inbox", "message_id", "source"), name="delaytasks_inboxmessage_once"
                    )
                ],
            },
        ),
    ]
