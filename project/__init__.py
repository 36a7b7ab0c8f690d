"""The example project. Imports the Celery app so that shared tasks find it in every process."""

from .celery import app as celery_app

__all__ = ["celery_app"]
