"""The right to submit: to create jobs without seeing any."""

from django.db import migrations, models

ANY_RIGHT = models.Q(("submit", True), ("produce", True), ("consume", True), ("manage", True), _connector="OR")


class Migration(migrations.Migration):
    dependencies = [("delaytasks_api", "0002_token_audit")]

    operations = [
        migrations.AddField(
            "grant",
            "submit",
            models.BooleanField(
                db_default=False, default=False, help_text="create jobs, without seeing any", verbose_name="submit"
            ),
        ),
        migrations.RemoveConstraint("grant", "delaytasks_api_grant_of_something"),
        migrations.AddConstraint(
            "grant",
            models.CheckConstraint(
                condition=ANY_RIGHT,
                name="delaytasks_api_grant_of_something",
                violation_error_message="Grant at least one of submit, produce, consume, manage.",
            ),
        ),
    ]
