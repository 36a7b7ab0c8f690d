"""Advice for each problem that the dashboard or a health check reports; both show the same text.

Commands print the English text, the dashboard its translation. The runbook (docs/howto/runbook.md) has the procedure.
"""

from enum import StrEnum
from typing import NamedTuple

from django.utils.translation import gettext_noop

from .. import conf

RUNBOOK = "docs/howto/runbook.md"


def runbook(section: str = "") -> str:
    """Return the URL of a section of the runbook, or its path in this repository if RUNBOOK_URL is not set."""
    page = conf.get().runbook_url or RUNBOOK
    return f"{page}#{section}" if section else page


class Problem(StrEnum):
    """The problems that the dashboard and the health checks report."""

    DATABASE = "database"
    WORKERS = "workers"
    MOVER = "mover"
    BEAT = "beat"
    READY = "ready"
    NO_HANDLER = "no handler"
    MIRROR_DOWN = "mirror down"
    MIRROR_READ_ONLY = "mirror read-only"
    MIRROR_DIFFERS = "mirror differs"
    MIRROR_NOT_COMPARED = "mirror not compared"
    SCHEDULES_BEHIND = "schedules behind"
    SCHEDULES_STOPPED = "schedules stopped"
    PAUSED = "paused"
    LATE = "late"
    FAILED = "failed"
    DIED = "died"


class Advice(NamedTuple):
    """What to do about a problem, and the runbook's section about it."""

    section: str
    text: str

    @property
    def address(self) -> str:
        return runbook(self.section)

    def __str__(self) -> str:
        return f"{self.text} See {self.address}."


ADVICE = {
    Problem.DATABASE: Advice(
        "database", gettext_noop("Start the database, check its address, and check that manage.py migrate was run.")
    ),
    Problem.WORKERS: Advice(
        "workers", gettext_noop("Start a worker. If one runs, read its log, and check its broker and its database.")
    ),
    Problem.MOVER: Advice(
        "mover",
        gettext_noop("Restart the workers: each runs a mover. Without mover threads, start beat and a worker."),
    ),
    Problem.BEAT: Advice(
        "beat",
        gettext_noop("Start beat. If it runs, its messages do not arrive, or all processes of the workers are busy."),
    ),
    Problem.READY: Advice(
        "ready",
        gettext_noop(
            "Check whether a worker takes jobs of the topic. If one does, add workers or raise the topic's concurrency."
        ),
    ),
    Problem.NO_HANDLER: Advice(
        "ready",
        gettext_noop("See whether a worker has a handler of the topic. If not, deploy the handler or cancel the jobs."),
    ),
    Problem.MIRROR_DOWN: Advice(
        "mirror",
        gettext_noop("Start Redis and check its address. Until then jobs run from the database, up to 1 s late."),
    ),
    Problem.MIRROR_READ_ONLY: Advice(
        "mirror",
        gettext_noop("If the memory of Redis is full, raise its maxmemory. Until then jobs run up to 1 s late."),
    ),
    Problem.MIRROR_DIFFERS: Advice(
        "rebuilt-mirror",
        gettext_noop("No job is lost; the mirror was repaired. If this recurs, see what else writes to this Redis."),
    ),
    Problem.MIRROR_NOT_COMPARED: Advice(
        "beat",
        gettext_noop(
            "The mirror was not compared with the database lately. Check whether beat and a worker are running."
        ),
    ),
    Problem.SCHEDULES_BEHIND: Advice(
        "schedules",
        gettext_noop("Workers make the runs of schedules. If workers and mover are ok, read the log of a worker."),
    ),
    Problem.SCHEDULES_STOPPED: Advice(
        "schedules", gettext_noop("Open the schedule: its state says why. Correct its times or its zone, and save it.")
    ),
    Problem.PAUSED: Advice("paused-topics", gettext_noop("Jobs wait until somebody resumes the topic.")),
    Problem.LATE: Advice("late-jobs", gettext_noop("Add workers, or spread the due times of the jobs.")),
    Problem.FAILED: Advice(
        "failed-attempts", gettext_noop("Read the last errors in the list of jobs, and remove their causes.")
    ),
    Problem.DIED: Advice(
        "dead-jobs", gettext_noop("Read the last error of the dead jobs, remove its cause, and retry them.")
    ),
}
