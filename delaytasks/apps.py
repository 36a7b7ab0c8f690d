"""The Django app."""

from typing import Any

from django.apps import AppConfig
from django.apps import apps as global_apps
from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DelaytasksConfig(AppConfig):
    name = "delaytasks"
    verbose_name = _("Business timeouts")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks and find the handlers. Touches no database, no Redis and no network."""
        from . import checks, conf  # noqa: F401  importing the checks registers them

        post_migrate.connect(_make_topic_rows, sender=self, dispatch_uid="delaytasks.topics")
        try:
            module = conf.get().autodiscover
        except ImproperlyConfigured:
            return  # the check delaytasks.E001 says it better than a traceback here
        if module:
            autodiscover_modules(module)


def _make_topic_rows(*, using: str, apps: Any = global_apps, **_kwargs: Any) -> None:
    """A Topic row for each handled topic, so that staff see it and can pause it before its first job."""
    from . import topics

    try:
        model = apps.get_model("delaytasks", "Topic")
    except LookupError:  # migrated back to before there was one
        return
    if router.allow_migrate_model(using, model):
        rows = [model(name=name) for name in topics.handled()]
        model._default_manager.using(using).bulk_create(rows, ignore_conflicts=True)
