"""The models of delaytasks.

Job, JobEvent, Topic   the source of truth
MirrorMark             the last known state of the mirror
BulkChange             a change to many jobs, and its progress
TopicStat              statistics that the data pipeline writes, for display only
LoadChunk              the chunks that the data pipeline has loaded
RetentionCursor        the position of the retention in the tables, and when jobs were archived
AuditEntry             the audit log: who changed what, from where; append-only
CalendarDay            a day on which a calendar has other hours than usual, entered by staff
Worker, Touch          running workers, and the leases of jobs that their handlers touched in a transaction
Schedule, ScheduleRun  recurring jobs, and the job of each that is running
Declaration            a declared timeout as it was applied, and the position of its reconciliation
TimeoutMark            a row of a watched table that has changed; TimeoutTrigger: the watched tables
SlaClock, SlaSegment   the clock of a service level for a row, and the states that it has left
InboxMessage           a message that an inbox has received from a broker, so that a repetition is recognized
"""

from .audit import AuditEntry
from .bulk import BulkChange
from .calendars import CalendarDay
from .inbox import InboxMessage
from .job import STATE_CHOICES, Board, Job, JobEvent
from .maintenance import MirrorMark, RetentionCursor
from .pipeline import LoadChunk, TopicStat
from .recurrence import Schedule, ScheduleRun
from .service_levels import SlaClock, SlaSegment
from .timeouts import Declaration, TimeoutMark, TimeoutTrigger
from .topic import Topic
from .worker import Touch, Worker

__all__ = [
    "STATE_CHOICES",
    "AuditEntry",
    "Board",
    "BulkChange",
    "CalendarDay",
    "Declaration",
    "InboxMessage",
    "Job",
    "JobEvent",
    "LoadChunk",
    "MirrorMark",
    "RetentionCursor",
    "Schedule",
    "ScheduleRun",
    "SlaClock",
    "SlaSegment",
    "TimeoutMark",
    "TimeoutTrigger",
    "Topic",
    "TopicStat",
    "Touch",
    "Worker",
]
