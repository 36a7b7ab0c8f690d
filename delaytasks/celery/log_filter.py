"""Leave out Celery's INFO lines about the engine's own task that runs very often.

Without Redis, beat sends move_due each second, and Celery logs three lines for each: sent, received, succeeded. Lines
about other tasks, about failures, and at the level DEBUG stay.
"""

import logging

LOGGERS = ("celery.beat", "celery.worker.strategy", "celery.app.trace")
QUIET_TASK = "delaytasks.move_due"


def is_wanted(record: logging.LogRecord) -> bool:
    """Return False for an INFO line about QUIET_TASK, unless the level DEBUG is enabled."""
    if record.levelno > logging.INFO or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
        return True
    return QUIET_TASK not in record.getMessage()


def install() -> None:
    """Add the filter to Celery's loggers. May be called more than once."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(is_wanted)
