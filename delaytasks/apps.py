"""The Django app configuration."""

from typing import Any

from django.apps import AppConfig
from django.apps import apps as global_apps
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_started
from django.db import router
from django.db.models.signals import post_delete, post_migrate, post_save
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DelaytasksConfig(AppConfig):
    name = "delaytasks"
    verbose_name = _("Business timeouts")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks and import the handlers. Needs no database, no Redis and no network."""
        from . import checks, conf, handlers, topics  # noqa: F401  importing the checks registers them
        from .calendars import registry
        from .db import calendar_days
        from .django_tasks import checks as task_checks  # noqa: F401
        from .forwarding.stored import checks as forwarding_checks  # noqa: F401
        from .forwarding.stored import targets
        from .inbox import checks as inbox_checks  # noqa: F401
        from .jobs import audit_log
        from .jobs import series as jobs_series
        from .jobs.cancellation import connect_deletes
        from .maintenance import passes
        from .recurrence import begin, maker, series
        from .recurrence import checks as schedule_checks  # noqa: F401
        from .timeouts import checks as timeout_checks  # noqa: F401
        from .timeouts import receivers, reconcile, retained_jobs  # noqa: F401  the last exempts jobs from the retention
        from .timeouts.triggers import installation, marks

        request_started.connect(audit_log.reset_source, dispatch_uid="delaytasks.jobs.audit_log")
        handlers.set_caller(begin.call)
        topics.set_builder(targets.handler)
        jobs_series.set_starter(series.start)
        # Assigned, not appended: ready() runs again when a test changes INSTALLED_APPS.
        passes[:] = [
            maker.make_due_throttled, series.delete_ended_throttled, marks.drain_for_a_while, reconcile.step_all
        ]  # fmt: skip
        registry.set_stored_days_reader(calendar_days.stored_days)
        for signal in (post_save, post_delete):
            signal.connect(
                calendar_days.on_change, sender="delaytasks.CalendarDay", dispatch_uid="delaytasks.calendars"
            )
            signal.connect(
                reconcile.calendar_changed, sender="delaytasks.CalendarDay", dispatch_uid="delaytasks.passes"
            )
        connect_deletes()  # for the handlers defined so far; a handler that is defined later connects itself
        post_migrate.connect(_make_topic_rows, sender=self, dispatch_uid="delaytasks.handlers")
        post_migrate.connect(installation.reinstall, sender=self, dispatch_uid="delaytasks.timeouts")
        try:
            module = conf.get().autodiscover
        except ImproperlyConfigured:
            return  # reported by the check delaytasks.E001
        if module:
            autodiscover_modules(module)
        receivers.connect_all()


def _make_topic_rows(*, using: str, apps: Any = global_apps, **_kwargs: Any) -> None:
    """Create a Topic row for each topic with a handler, so that staff can pause the topic before its first job."""
    from . import handlers

    try:
        model = apps.get_model("delaytasks", "Topic")
    except LookupError:  # migrated back to a state without the model
        return
    if router.allow_migrate_model(using, model):
        rows = [model(name=name) for name in handlers.handled()]
        model._default_manager.using(using).bulk_create(rows, ignore_conflicts=True)
