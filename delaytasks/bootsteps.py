"""Kept for projects that import install() from here. Use `from delaytasks.celery import install`."""

from .celery import install

__all__ = ["install"]
