"""The example project's settings with the database and Redis of a benchmark.

BENCH_DELAYTASKS       delaytasks settings to override, as JSON: {"BUCKETS": 1}
BENCH_RETENTION_DAYS   how long ended jobs of all topics are kept
"""

import json
import os
from datetime import timedelta

SQLITE = os.environ.get("BENCH_DATABASE") == "sqlite"
os.environ["DATABASE_URL"] = (
    f"sqlite:///{os.environ['BENCH_DIR']}/db.sqlite3" if SQLITE else os.environ["BENCH_POSTGRES"]
)
os.environ["REDIS_URL"] = os.environ["BENCH_REDIS"]
os.environ["VAR_DIR"] = os.environ["BENCH_DIR"]
os.environ.setdefault("SECRET_KEY", "benchmark")  # the same in each process

from project.settings import *  # noqa: E402, F403
from project.settings import DELAYTASKS as PROJECT_DELAYTASKS  # noqa: E402
from project.settings import INSTALLED_APPS as PROJECT_APPS  # noqa: E402

INSTALLED_APPS = [*PROJECT_APPS, "benchmarks.contestants.ours"]
if not SQLITE:  # as docs/howto/deploy.md recommends without a pooler
    DATABASES["default"].setdefault("OPTIONS", {})["prepare_threshold"] = 1  # noqa: F405
DELAYTASKS = PROJECT_DELAYTASKS | json.loads(os.environ.get("BENCH_DELAYTASKS") or "{}")
if os.environ.get("BENCH_RETENTION_DAYS"):
    DELAYTASKS["RETENTION"] = {"*": {"ended": timedelta(days=int(os.environ["BENCH_RETENTION_DAYS"]))}}
