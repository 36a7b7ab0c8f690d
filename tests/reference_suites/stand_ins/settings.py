"""Settings of the throw-away folder in which a suite runs."""

import os
from pathlib import Path

HERE = Path(__file__).parent
SECRET_KEY = "only-for-tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "delaytasks", "delaytasks.django_tasks"]
INSTALLED_APPS += ["django_tasks_db"]  # the commands that stand in for those of that package
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": HERE / "unused.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 2, "init_command": "PRAGMA journal_mode=WAL"},
        "TEST": {"NAME": HERE / "suite.sqlite3"},
    }
}
DELAYTASKS = {"REDIS_URL": None, "AHEAD_MS": 0, "LINGER_MS": 0}
TASKS = {"default": {"BACKEND": "delaytasks.django_tasks.DelaytasksBackend"}}
# A few tests of Django call a synchronous method in a coroutine. Its dummy backend may be called there; a database may
# not, unless this is set.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
