"""Where the jobs of a topic are forwarded. Processes of the older version insert rows without the column, which is null."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0032_priority_index")]

    operations = [
        migrations.AddField(
            "topic",
            "target",
            models.JSONField(
                default=None,
                editable=False,
                help_text="where its jobs are forwarded, unless code says so; none: nowhere",
                null=True,
                verbose_name="target",
            ),
        ),
        migrations.AlterModelOptions(
            "topic",
            {
                "permissions": [("forward_topic", "Can change where the jobs of a topic are forwarded")],
                "verbose_name": "topic",
                "verbose_name_plural": "topics",
            },
        ),
    ]
