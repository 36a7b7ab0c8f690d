"""Settings of a site with django-celery-beat, for test_beat_migration.py."""

import os
from datetime import timedelta

from tests.settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "django_celery_beat", "tests.celery.beat_site"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("BEAT_SITE_DB", ":memory:")}}
CELERY_BEAT_SCHEDULE = {
    "every ten minutes": {"task": "shop.report", "schedule": timedelta(minutes=10), "kwargs": {"to": "anna"}},
    "turned off": {"task": "shop.report", "schedule": timedelta(hours=1)},
}
DELAYTASKS = {**DELAYTASKS, "TOPICS": {"shop.report": {}}}
