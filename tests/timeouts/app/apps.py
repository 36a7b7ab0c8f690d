from django.apps import AppConfig


class TimeoutModels(AppConfig):
    name = "tests.timeouts.app"
    label = "declared"
    default_auto_field = "django.db.models.BigAutoField"
