"""Business timeouts for Django: for example, close an order after 30 minutes unless it is paid.

    from delaytasks import cancel, handler, schedule

    schedule("order.close", key="order:1042", delay=timedelta(minutes=30))    # in the order's transaction
    cancel("order.close", key="order:1042")                                   # "cancelled": the job will not run

    @handler("order.close", ttr=60)                                           # in timeouts.py of any app
    def close_unpaid_order(job: RunningJob) -> None: ...

The exceptions are in delaytasks.exceptions, the signals in delaytasks.signals, and the row of a job is a
delaytasks.models.Job.

Importing this package or one of its names needs no settings, loads no models and opens no connection.
"""

from typing import TYPE_CHECKING

__version__ = "0.2.0"

__all__ = [
    "Calendar", "CancelResult", "Retry", "RunningJob", "Skip", "Snooze", "acancel", "acancel_many", "areschedule",
    "aretry_dead", "arun_now", "aschedule", "aschedule_many", "cancel", "cancel_many", "forward", "handler", "jobs_of",
    "levels", "poll", "recurring", "reschedule", "retry_dead", "run_now", "schedule", "schedule_many", "sla", "timeout",
]  # fmt: skip

# The same names twice: as imports for type checkers, and as modules to import when a name is first used.
if TYPE_CHECKING:
    from .calendars.calendar import Calendar
    from .forwarding.registration import forward
    from .handlers import Retry, Skip, Snooze, handler
    from .jobs.asynchronous import (
        acancel,
        acancel_many,
        areschedule,
        aretry_dead,
        arun_now,
        aschedule,
        aschedule_many,
    )
    from .jobs.cancellation import cancel_many
    from .jobs.control import cancel, reschedule, retry_dead, run_now
    from .jobs.schedule import schedule, schedule_many
    from .jobs.subjects import jobs_of
    from .outcomes import CancelResult
    from .polling.levels import levels
    from .polling.poll import poll
    from .recurrence.decorator import recurring
    from .service_levels.sla import sla
    from .timeouts.timeout import timeout
    from .worker.attempt import RunningJob
else:
    from importlib import import_module

    _HOMES = {
        "Calendar": "calendars.calendar",
        "CancelResult": "outcomes",
        "Retry": "handlers",
        "RunningJob": "worker.attempt",
        "Skip": "handlers",
        "Snooze": "handlers",
        "acancel": "jobs.asynchronous",
        "acancel_many": "jobs.asynchronous",
        "areschedule": "jobs.asynchronous",
        "aretry_dead": "jobs.asynchronous",
        "arun_now": "jobs.asynchronous",
        "aschedule": "jobs.asynchronous",
        "aschedule_many": "jobs.asynchronous",
        "cancel": "jobs.control",
        "cancel_many": "jobs.cancellation",
        "forward": "forwarding.registration",
        "handler": "handlers",
        "jobs_of": "jobs.subjects",
        "levels": "polling.levels",
        "poll": "polling.poll",
        "recurring": "recurrence.decorator",
        "reschedule": "jobs.control",
        "retry_dead": "jobs.control",
        "run_now": "jobs.control",
        "schedule": "jobs.schedule",
        "schedule_many": "jobs.schedule",
        "sla": "service_levels.sla",
        "timeout": "timeouts.timeout",
    }

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*globals(), *_HOMES])
