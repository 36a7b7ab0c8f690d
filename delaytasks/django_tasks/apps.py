"""Configuration of the Django app of the Tasks backend."""

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string


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
        from .backend import DelaytasksBackend
        from .compat import task_backends

        for alias, options in (getattr(settings, "TASKS", None) or {}).items():
            try:
                backend_class = import_string(options["BACKEND"])
            except (ImportError, KeyError):
                continue  # Django reports it when the backend is used
            if isinstance(backend_class, type) and issubclass(backend_class, DelaytasksBackend):
                task_backends[alias]  # creates the backend, which registers its handlers
