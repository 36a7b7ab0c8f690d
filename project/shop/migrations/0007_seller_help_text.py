"""The help text of how long a seller may offer nothing. Changes no column."""

import datetime

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0006_help_texts"),
    ]

    operations = [
        migrations.AlterField(
            model_name="seller",
            name="remind_after",
            field=models.DurationField(
                default=datetime.timedelta(days=30),
                help_text="time without an offer, such as 30 00:00:00 for 30 days; a number alone means seconds",
                verbose_name="remind after",
            ),
        ),
    ]
