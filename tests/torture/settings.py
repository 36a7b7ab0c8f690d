"""Settings of all processes of a trial: the project's, with the handlers and the timeouts of the tests."""

import os

from project.settings import *
from tests.torture.constants import MOST_ATTEMPTS, TTR_SECONDS
from tests.torture.targets.addresses import brokers

INSTALLED_APPS = [*INSTALLED_APPS, "tests.torture.app"]
if "POOLED" in os.environ:
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True  # as Django asks for in transaction mode
MIRROR_URL = os.environ.get("MIRROR_URL") or REDIS_URL
DELAYTASKS = {
    **DELAYTASKS,
    # The client name lets faults find these connections among those of the broker and the cache.
    "REDIS_URL": f"{MIRROR_URL}?client_name=mirror" if MIRROR_URL.startswith("redis://") else MIRROR_URL or None,
    "REDIS_CLUSTER": bool(os.environ.get("MIRROR_CLUSTER")),
    "TTR_GRACE_SECONDS": 1.0,
    "SWEEP_SECONDS": 5,
    "BROKERS": brokers(),
    "TOPICS": {**DELAYTASKS["TOPICS"], "torture.http": {"ttr": TTR_SECONDS, "max_attempts": MOST_ATTEMPTS}},
}
