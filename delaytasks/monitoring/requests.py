"""Report requests to the HTTP API to `observers`, to which prometheus.py adds itself.

A process starts to count at its first scrape. If web processes share a directory for their counters, each starts at its
first request, because a scrape may reach any of them. In processes that are never scraped, nothing is counted.
"""

import functools
import logging
import os
import time
from collections.abc import Callable

logger = logging.getLogger("delaytasks")
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the library's environment variable for the shared directory
Observer = Callable[[str, str, int, float], None]  # method, name of the endpoint's URL, status, seconds
BEGAN = "delaytasks.began"  # in the ASGI scope: what began() returned before the request came to its view
observers: list[Observer] = []


def began() -> float:
    """Return the time at which a request begins, for ended(); 0.0 if requests are not counted."""
    _count_for_others()
    return time.perf_counter() if observers else 0.0


def ended(since: float, method: str, endpoint: str, status: int) -> None:
    """Count a request. `since` is what began() returned for it."""
    if since:
        seconds = time.perf_counter() - since
        for observer in observers:
            observer(method, endpoint, status, seconds)


@functools.cache
def lacks_directory() -> bool:
    """Return whether PROMETHEUS_MULTIPROC_DIR is set but is not a directory. Logs it once."""
    folder = os.environ.get(SHARED)
    if folder is None or os.path.isdir(folder):
        return False
    logger.warning("metrics: %s is %r, which is not a directory: nothing is counted", SHARED, folder)
    return True


@functools.cache
def _count_for_others() -> None:
    """Start counting if PROMETHEUS_MULTIPROC_DIR is set: another process may then be scraped for these counts."""
    if SHARED not in os.environ or lacks_directory():
        return
    try:
        from . import prometheus
    except ModuleNotFoundError as error:
        logger.warning("metrics: %s is set, and %s is not installed: nothing is counted", SHARED, error.name)
    else:
        prometheus.enable()
