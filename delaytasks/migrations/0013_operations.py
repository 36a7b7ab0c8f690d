"""The position of the retention, and the time of the last sweep. Both are additive: older versions ignore them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0012_claims")]

    operations = [
        migrations.CreateModel(
            name="RetentionCursor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_id", models.BigIntegerField(default=0, null=True)),
                ("event_id", models.BigIntegerField(default=0, null=True)),
                ("began_at", models.DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.AddField("mirrormark", "swept_at", models.DateTimeField(null=True)),
    ]
