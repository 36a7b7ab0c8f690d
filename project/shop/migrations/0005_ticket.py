"""Tickets of customers. Adds a table."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0004_more_timeouts"),
    ]

    operations = [
        migrations.CreateModel(
            name="Ticket",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("title", models.CharField(max_length=200, verbose_name="title")),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("waiting", "Waiting for the customer"), ("answered", "Answered")],
                        default="open",
                        max_length=8,
                        verbose_name="state",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False, verbose_name="created at"),
                ),
                ("reminded_at", models.DateTimeField(editable=False, null=True, verbose_name="reminded at")),
                ("overdue_at", models.DateTimeField(editable=False, null=True, verbose_name="overdue since")),
                ("escalated_at", models.DateTimeField(editable=False, null=True, verbose_name="escalated at")),
                (
                    "customer",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="tickets",
                        to="shop.customer",
                        verbose_name="customer",
                    ),
                ),
            ],
            options={
                "verbose_name": "ticket",
                "verbose_name_plural": "tickets",
            },
        ),
    ]
