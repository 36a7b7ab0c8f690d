"""The example project. Celery's app is imported here, so that shared tasks find it in every process."""

from .celery import app as celery_app

__all__ = ["celery_app"]
