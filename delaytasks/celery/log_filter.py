"""Leave out Celery's INFO lines about the engine's own tasks that run very often.

Without Redis, beat sends move_due each second, and Celery logs three lines for each: sent, received, succeeded. Workers
of older versions send chains of `prune` tasks. Lines about other tasks, about failures, and at the level DEBUG stay.
"""

import logging

LOGGERS = ("celery.beat", "celery.worker.strategy", "celery.app.trace")
QUIET_TASKS = ("delaytasks.move_due", "delaytasks.prune")


def is_wanted(record: logging.LogRecord) -> bool:
    """Return False for an INFO line about one of QUIET_TASKS, unless the level DEBUG is enabled."""
    if record.levelno > logging.INFO or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
        return True
    return not any(task in record.getMessage() for task in QUIET_TASKS)


def install() -> None:
    """Add the filter to Celery's loggers. May be called more than once."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(is_wanted)
