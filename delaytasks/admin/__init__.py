"""The admin: jobs to look at and to act on, topics to pause. Found by Django's admin autodiscovery."""

from . import jobs, topics

__all__ = ["jobs", "topics"]
