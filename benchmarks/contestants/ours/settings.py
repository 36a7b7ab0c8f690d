"""The example project's settings in production, on the database and the Redis of a benchmark.

BENCH_DELAYTASKS   JSON, settings of delaytasks that replace ours: {"BUCKETS": 1}
"""

import json
import os

SQLITE = os.environ.get("BENCH_DATABASE") == "sqlite"
os.environ["DATABASE_URL"] = (
    f"sqlite:///{os.environ['BENCH_DIR']}/db.sqlite3" if SQLITE else os.environ["BENCH_POSTGRES"]
)
os.environ["REDIS_URL"] = os.environ["BENCH_REDIS"]
os.environ["VAR_DIR"] = os.environ["BENCH_DIR"]
os.environ.setdefault("SECRET_KEY", "of a benchmark")  # the same in each process

from project.settings import *  # noqa: E402, F403
from project.settings import DELAYTASKS as OF_THE_PROJECT  # noqa: E402
from project.settings import INSTALLED_APPS as APPS_OF_THE_PROJECT  # noqa: E402

INSTALLED_APPS = [*APPS_OF_THE_PROJECT, "benchmarks.contestants.ours"]
DELAYTASKS = OF_THE_PROJECT | json.loads(os.environ.get("BENCH_DELAYTASKS") or "{}")
