"""The Celery app: `celery -A project worker` and `celery -A project beat`."""

import os

from celery import Celery

from delaytasks.celery import install

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
install(app)  # the tasks, the mover in each worker and the beat entries
app.autodiscover_tasks()
