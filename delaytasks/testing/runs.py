"""The results of advance() and run_due()."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Run:
    """One run of a job.

    outcome   that of the job's event: "finished", "snoozed", "failed", "dead", "skipped", "rescheduled", "expired" or
              "cancelled" (running="fence"); "died" after die_in(); "lost" if nothing was recorded, because the
              attempt had lost the job, or the job had to wait for another run of its schedule
    at        aware datetime at which it ran: the due time, or later if it was overdue
    error     the stored error; "" if there was none
    """

    topic: str
    key: str
    outcome: str
    at: datetime
    error: str = ""

    def __repr__(self) -> str:
        line = self.error.strip().rpartition("\n")[2]
        return f"<{self.topic} {self.key} {self.outcome} at {self.at:%Y-%m-%d %H:%M:%S.%f}{line and ': ' + line}>"


class Runs(tuple[Run, ...]):
    """The runs of one advance(), in order. False in a boolean context if no job ran."""

    __slots__ = ()

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of runs by outcome: {"finished": 1}."""
        return dict(Counter(run.outcome for run in self))

    @property
    def topics(self) -> dict[str, int]:
        """The number of runs by topic."""
        return dict(Counter(run.topic for run in self))
