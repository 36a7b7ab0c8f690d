"""Settings of the beat and worker processes: the project's, with the tests' handlers."""

import json
import os
from datetime import timedelta

from project.settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "tests.acceptance.app"]
DELAYTASKS = {**DELAYTASKS, "TTR_GRACE_SECONDS": 1.0, **json.loads(os.environ.get("DELAYTASKS_OVERRIDES", "{}"))}
if "RETENTION_DAYS" in os.environ:
    DELAYTASKS["RETENTION"] = {"*": {"ended": timedelta(days=int(os.environ["RETENTION_DAYS"]))}}
if "POOLED" in os.environ:
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True  # as Django asks for in transaction mode
if "PREFETCH" in os.environ:
    CELERY_WORKER_DISABLE_PREFETCH = False
