"""A limit of live jobs for each token."""

from django.core.validators import MinValueValidator
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delaytasks_api", "0003_submit")]

    operations = [
        migrations.AddField(
            "token",
            "max_live_jobs",
            models.PositiveIntegerField(
                blank=True,
                help_text="empty: as API_MAX_LIVE_JOBS says",
                null=True,
                validators=[MinValueValidator(1)],
                verbose_name="live jobs at most",
            ),
        ),
    ]
