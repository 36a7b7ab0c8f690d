"""Clearer help texts. No SQL: the tables stay the same."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks_api", "0004_max_live_jobs"),
    ]

    operations = [
        migrations.AlterField(
            model_name="serviceaccount",
            name="active",
            field=models.BooleanField(
                default=True, help_text="if unchecked, all its tokens are refused", verbose_name="active"
            ),
        ),
        migrations.AlterField(
            model_name="serviceaccount",
            name="name",
            field=models.CharField(
                help_text="recorded for each job that it changes",
                max_length=100,
                unique=True,
                validators=[
                    django.core.validators.RegexValidator(
                        "\\A[A-Za-z0-9][A-Za-z0-9._-]*\\Z", "Use A-Z a-z 0-9 . _ -, the first a letter or digit."
                    )
                ],
                verbose_name="name",
            ),
        ),
        migrations.AlterField(
            model_name="serviceaccount",
            name="note",
            field=models.TextField(
                blank=True, default="", help_text="its owner, and whom to contact", verbose_name="note"
            ),
        ),
        migrations.AlterField(
            model_name="token",
            name="expiry_date",
            field=models.DateTimeField(
                blank=True,
                help_text="the token is refused from this time on; empty: it never expires",
                null=True,
                verbose_name="expires",
            ),
        ),
        migrations.AlterField(
            model_name="token",
            name="max_live_jobs",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="empty: the value of API_MAX_LIVE_JOBS",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
                verbose_name="live jobs at most",
            ),
        ),
        migrations.AlterField(
            model_name="token",
            name="max_request_bytes",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="empty: the value of API_MAX_REQUEST_BYTES",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
                verbose_name="largest request in bytes",
            ),
        ),
        migrations.AlterField(
            model_name="token",
            name="name",
            field=models.CharField(help_text="its purpose, or where it is stored", max_length=50, verbose_name="name"),
        ),
        migrations.AlterField(
            model_name="token",
            name="rate_per_minute",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="empty: the value of API_RATE_PER_MINUTE",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
                verbose_name="requests per minute",
            ),
        ),
        migrations.AlterField(
            model_name="token",
            name="revoked",
            field=models.BooleanField(
                default=False, help_text="takes effect at once and cannot be undone", verbose_name="revoked"
            ),
        ),
    ]
