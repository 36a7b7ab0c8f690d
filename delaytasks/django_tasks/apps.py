"""Configuration of the Django app of the Tasks backend."""

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured


class DjangoTasksConfig(AppConfig):
    name = "delaytasks.django_tasks"
    label = "delaytasks_django_tasks"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """Check that delaytasks is installed, then import the models. Raises ImproperlyConfigured."""
        if not apps.is_installed("delaytasks"):
            raise ImproperlyConfigured("delaytasks.django_tasks requires delaytasks in INSTALLED_APPS.")
        super().import_models()

    def ready(self) -> None:
        """Register the handlers of the backends in TASKS, so that this process can run their jobs."""
        from .backend import configured_backends

        for _ in configured_backends():  # each registers its handlers when it is created
            pass
