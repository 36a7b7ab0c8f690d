"""The project's settings, with the databases and the broker that tests have.

DELAYTASKS_TEST_DB   sqlite (default) or postgres: the database of this pass. tests/conftest.py fills in
                     where the server or the file is when the first test asks for a database.
"""

import os
from typing import Any

from project.settings import *

TEST_DB = os.environ.get("DELAYTASKS_TEST_DB", "sqlite")

if TEST_DB == "postgres":
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres"}}
elif TEST_DB == "sqlite":
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": "unused-by-tests.sqlite3",
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 5,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF",  # nothing outlives the tests
            },
        }
    }
else:
    raise ValueError(f"DELAYTASKS_TEST_DB={TEST_DB!r}: say sqlite or postgres.")

INSTALLED_APPS = [*INSTALLED_APPS, "delaytasks.django_tasks"]  # its tests set TASKS
INSTALLED_APPS += ["tests.timeouts.app"]  # models to declare timeouts on

DELAYTASKS = dict[str, Any](
    REDIS_URL=None,  # database only; the fixtures `mirror` and `due_index` say otherwise
    AHEAD_MS=0,  # the clock of most tests stands still: what is early would be early for ever
)
CELERY_BROKER_URL = "memory://"  # nobody receives the messages; acceptance tests have real workers and a real broker
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# It is async only: a thread would start for each request of a test client. The fixture `static_files` adds it again.
MIDDLEWARE = [name for name in MIDDLEWARE if name != "servestatic.middleware.ServeStaticMiddleware"]
