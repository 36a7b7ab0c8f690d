from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds a column. Permissions that were made for bulk changes stay where they are, and mean nothing."""

    dependencies = [
        ("delaytasks", "0005_board"),
    ]

    operations = [
        migrations.AddField(
            model_name="bulkchange",
            name="put_off",
            field=models.JSONField(db_default=[], default=list),
        ),
        migrations.AlterField(
            model_name="bulkchange",
            name="created_at",
            field=models.DateTimeField(verbose_name="asked for"),
        ),
        migrations.AlterModelOptions(
            name="bulkchange",
            options={
                "default_permissions": (),
                "verbose_name": "bulk change",
                "verbose_name_plural": "bulk changes",
            },
        ),
    ]
