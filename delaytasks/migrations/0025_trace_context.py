"""The trace context of the span that scheduled a job. A nullable column: processes of the older version insert jobs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0024_service_levels"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="trace_context",
            field=models.TextField(editable=False, null=True),
        ),
    ]
