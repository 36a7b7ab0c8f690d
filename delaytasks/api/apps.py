"""Configuration of the HTTP API's Django app."""

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_delete, post_save
from django.utils.translation import gettext_lazy as _

REQUIRED_APPS = ("rest_framework_api_key", "delaytasks")


class ApiConfig(AppConfig):
    name = "delaytasks.api"
    label = "delaytasks_api"
    verbose_name = _("Access over HTTP")
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """Check that the required apps are installed, then import the models. Raises ImproperlyConfigured.

        Without the check, a missing app would raise an import error, which is harder to understand.
        """
        missing = [name for name in REQUIRED_APPS if not apps.is_installed(name)]
        if missing:
            raise ImproperlyConfigured(f"delaytasks.api requires {' and '.join(missing)} in INSTALLED_APPS.")
        super().import_models()

    def ready(self) -> None:
        """Register the system checks and the signals' receivers. Uses no database, no cache and no network."""
        from . import checks  # noqa: F401  importing the module registers the checks
        from .access import token_cache
        from .models import Grant, ServiceAccount, Token

        for model in (ServiceAccount, Token, Grant):
            for signal in (post_save, post_delete):
                signal.connect(token_cache.on_change, sender=model, dispatch_uid="delaytasks.api.access.token_cache")
