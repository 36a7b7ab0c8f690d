"""When the pipeline last archived jobs, so that the retention notices that a lake is not mounted."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0041_named_schedules")]

    operations = [
        migrations.AddField(
            model_name="retentioncursor",
            name="archived_at",
            field=models.DateTimeField(null=True),
        ),
    ]
