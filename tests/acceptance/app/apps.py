from django.apps import AppConfig


class AcceptanceConfig(AppConfig):
    name = "tests.acceptance.app"
    label = "acceptance"
    default_auto_field = "django.db.models.BigAutoField"
