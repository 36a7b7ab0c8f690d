"""The admin: jobs to act on, bulk changes to follow, topics to pause. Found by Django's autodiscovery."""

from . import bulkchanges, jobs, topics

__all__ = ["bulkchanges", "jobs", "topics"]
