"""Whose limit of live jobs counts a job, and the jobs of a schedule. 0027 creates the index."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0022_series")]

    operations = [  # in the order in which the engine locks rows of both
        migrations.AddField("schedule", "producer", models.CharField(max_length=8, null=True, editable=False)),
        migrations.AddField("job", "producer", models.CharField(max_length=8, null=True, editable=False)),
    ]
