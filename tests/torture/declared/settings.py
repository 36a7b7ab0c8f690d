"""Settings of the processes of `same_rows`: the project's, with the handlers of the histories."""

import os

from project.settings import *

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "tests.timeouts.app", "tests.torture.declared"]
DELAYTASKS = {
    **DELAYTASKS,
    "TTR_GRACE_SECONDS": 1.0,
    "SWEEP_SECONDS": 5,
    "RECONCILE_SECONDS": int(os.environ.get("RECONCILE_SECONDS", "60")),
}
