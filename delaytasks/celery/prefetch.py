"""Let a worker fetch a message only when one of its processes is idle, where the broker allows that.

A worker otherwise takes four messages for each of its processes and keeps those that it cannot begin: a topic's next
runner then waits for a busy worker, while another worker is idle.
"""

from typing import Any
from urllib.parse import urlsplit

from celery import Celery

OPTION = "worker_disable_prefetch"  # Celery supports it with Redis only


def disable_prefetch(app: Celery) -> None:
    """Set `worker_disable_prefetch` when the app is configured, unless the project has set it."""
    if app.configured:
        _disable(app)
    else:
        app.on_after_configure.connect(_disable, weak=False)


def _disable(sender: Celery, **_: Any) -> None:
    if has_redis_broker(sender.conf) and not _is_set(sender.conf):
        sender.conf[OPTION] = True


def has_redis_broker(conf: Any) -> bool:
    """Return whether the messages of a Celery app with this configuration come from Redis."""
    urls = conf.broker_read_url or conf.broker_url or ""
    url = urls if isinstance(urls, str) else urls[0]  # the others are for failover
    return urlsplit(url).scheme.startswith(("redis", "sentinel"))


def _is_set(conf: Any) -> bool:
    """Return whether the project has set the option, in any of the places where it can."""
    names = (OPTION, f"{conf.prefix or ''}{OPTION.upper()}")
    *of_project, _ = conf.maps  # the last one has the defaults
    return any(name in settings for name in names for settings in of_project)
