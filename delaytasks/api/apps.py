"""The Django app of the HTTP side."""

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

NEEDED = ("rest_framework_api_key", "delaytasks")


class ApiConfig(AppConfig):
    name = "delaytasks.api"
    label = "delaytasks_api"
    verbose_name = _("Access over HTTP")
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """Says what is missing before an import fails with something harder to read. Raises ImproperlyConfigured."""
        missing = [name for name in NEEDED if not apps.is_installed(name)]
        if missing:
            raise ImproperlyConfigured(f"delaytasks.api needs {' and '.join(missing)} in INSTALLED_APPS, too.")
        super().import_models()

    def ready(self) -> None:
        """Register the system checks. Touches no database, no cache and no network."""
        from . import checks  # noqa: F401  importing them registers them
