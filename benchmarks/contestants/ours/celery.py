"""The Celery app of the measured project: `celery -A benchmarks.contestants.ours worker`."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.contestants.ours.settings")

from project.celery import app

__all__ = ["app"]
