from django.db import migrations


class Migration(migrations.Migration):
    """Touches no table: the board's entry in the admin."""

    dependencies = [
        ("delaytasks", "0004_staff"),
    ]

    operations = [
        migrations.CreateModel(
            name="Board",
            fields=[],
            options={
                "verbose_name": "Board",
                "verbose_name_plural": "Board",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("delaytasks.job",),
        ),
    ]
