"""Django signals, sent after commit and robustly: a receiver that raises is logged, never felt by the queue.

Every signal carries `job` (a delaytasks.models.Job or the attempt that a handler saw; both have
id, topic, key, attempt and due_at). The sender is the topic's name.
"""

from django.dispatch import Signal

job_scheduled = Signal()
job_rescheduled = Signal()
job_cancelled = Signal()
job_finished = Signal()
job_snoozed = Signal()
job_failed = Signal()  # also carries error: str, the last line of the traceback
job_dead = Signal()  # also carries error: str
