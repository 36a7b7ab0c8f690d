"""The admin: the board, jobs, bulk changes, topics, schedules and calendars. Loaded by admin.autodiscover()."""

from . import jobs, topics
from .bulk import changes as bulk_changes
from .dashboard import admin as dashboard
from .recurrence import calendar_days, schedules
from .service_levels.mixin import SlaMixin
from .subjects import TimeoutsMixin

__all__ = ["SlaMixin", "TimeoutsMixin", "bulk_changes", "calendar_days", "dashboard", "jobs", "schedules", "topics"]
