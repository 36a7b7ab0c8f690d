"""Columns for polling ladders and for jobs that expire. Nullable or with a database default: older workers insert."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0019_timeout_marks")]

    operations = [
        migrations.AddField(
            "job", "expires_ms", models.BigIntegerField(null=True, verbose_name="expires after, in ms")
        ),
        migrations.AddField("job", "polls", models.IntegerField(db_default=0, default=0, verbose_name="polls")),
        migrations.AddField("job", "replaced_at", models.DateTimeField(null=True)),
    ]
