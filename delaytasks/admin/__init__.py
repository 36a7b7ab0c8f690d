"""The admin: a board to leave open, jobs to act on, bulk changes to follow, topics to pause.

Found by Django's autodiscovery.
"""

from . import board, bulkchanges, jobs, topics

__all__ = ["board", "bulkchanges", "jobs", "topics"]
