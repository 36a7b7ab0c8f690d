"""Clearer help texts. No SQL: the tables stay the same."""

import datetime

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0005_ticket"),
    ]

    operations = [
        migrations.AlterField(
            model_name="customer",
            name="seen_at",
            field=models.DateTimeField(
                blank=True, help_text="members only; empty: not a member", null=True, verbose_name="last seen at"
            ),
        ),
        migrations.AlterField(
            model_name="device",
            name="command_at",
            field=models.DateTimeField(
                blank=True, help_text="when the command is sent to the device", null=True, verbose_name="set time"
            ),
        ),
        migrations.AlterField(
            model_name="lesson",
            name="starts_at",
            field=models.DateTimeField(help_text="the students are reminded shortly before", verbose_name="starts at"),
        ),
        migrations.AlterField(
            model_name="product",
            name="stock",
            field=models.PositiveIntegerField(
                help_text="units that can still be ordered; those in open orders are not included", verbose_name="stock"
            ),
        ),
        migrations.AlterField(
            model_name="seller",
            name="remind_after",
            field=models.DurationField(
                default=datetime.timedelta(days=30),
                help_text="time without an offer: days, or hours:minutes:seconds",
                verbose_name="remind after",
            ),
        ),
    ]
