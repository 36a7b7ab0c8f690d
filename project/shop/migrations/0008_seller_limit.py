"""The longest time that a seller may offer nothing. Changes no column."""

import datetime

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0007_seller_help_text"),
    ]

    operations = [
        migrations.AlterField(
            model_name="seller",
            name="remind_after",
            field=models.DurationField(
                default=datetime.timedelta(days=30),
                help_text="time without an offer, such as 30 00:00:00 for 30 days; a number alone means seconds",
                validators=[django.core.validators.MaxValueValidator(datetime.timedelta(days=3650))],
                verbose_name="remind after",
            ),
        ),
    ]
