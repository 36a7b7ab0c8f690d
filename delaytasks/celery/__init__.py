"""Celery integration: install(app) adds delaytasks to a Celery app."""

from .bootsteps import install

__all__ = ["install"]
