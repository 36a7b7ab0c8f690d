from django.apps import AppConfig


class TortureConfig(AppConfig):
    name = "tests.torture.app"
    label = "torture"
    default_auto_field = "django.db.models.BigAutoField"
