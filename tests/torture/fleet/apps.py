from django.apps import AppConfig


class FleetConfig(AppConfig):
    """The handler of `python -m tests.torture.fleet`, and the table of its effects."""

    name = "tests.torture.fleet"
    label = "fleet"
    default_auto_field = "django.db.models.BigAutoField"
