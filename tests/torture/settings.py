"""The settings of every process of a trial: the project's, with the handlers and the patience of the tests."""

import os

from project.settings import *
from tests.torture.terms import TTR_SECONDS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.torture.app"]
DELAYTASKS = {
    **DELAYTASKS,
    "REDIS_URL": os.environ.get("MIRROR_URL") or DELAYTASKS["REDIS_URL"],
    "REDIS_CLUSTER": bool(os.environ.get("MIRROR_CLUSTER")),
    "TTR_GRACE_SECONDS": 1.0,
    "SWEEP_SECONDS": 5,
    "TOPICS": {**DELAYTASKS["TOPICS"], "torture.http": {"ttr": TTR_SECONDS, "max_attempts": 100}},
}
