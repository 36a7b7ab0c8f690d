"""The seven Django signals of delaytasks.

    @receiver(job_dead)
    def page_on_call(sender: str, job: RunningJob | Job, error: str, **kwargs: Any) -> None: ...

Common to all signals:

sender   str, the topic's name. Compare it inside the receiver: connect(sender=...) never matches a topic,
         because Django compares senders by identity
job      a RunningJob, or the row (delaytasks.models.Job). Both have id, topic, key, body, attempt,
         failures, due_at and created_at
error    str, in job_failed and job_dead only: the last line of the job's stored error

Signals are sent after the commit, in the thread that made the change, with send_robust(): if a receiver raises, Django
logs the exception. They are never sent after a rollback. A signal may be missing, because a process that is killed
after the commit sends nothing. To see every change, read the jobs' rows and events (delaytasks.models.Job, JobEvent).
"""

from django.dispatch import Signal

__all__ = [
    "job_cancelled", "job_dead", "job_failed", "job_finished", "job_rescheduled", "job_scheduled", "job_snoozed",
]  # fmt: skip

job_scheduled = Signal()
"""A job was created, replaced, or scheduled again while it was running: by a call, a command, a request over HTTP, its
schedule or its declared timeout.

job   the row as it is after the commit

Not sent for the rows of `pipeline load`. A replaced job sends this signal only, not job_rescheduled.
"""

job_rescheduled = Signal()
"""A job's due time was changed: by reschedule(), run_now() or retry_dead(), by staff, or by its declared timeout.

job   the row as it is after the commit
"""

job_cancelled = Signal()
"""A job was cancelled: by cancel() or cancel_many(), by staff, with its series or its subject, by a change of its
schedule, or by its declared timeout.

job   the row as it is after the commit

Not sent by a cancel() that changed nothing, nor for a job that ends as skipped.
"""

job_finished = Signal()
"""A job has finished: its handler returned, or its consumer finished it over HTTP.

job   RunningJob
"""

job_snoozed = Signal()
"""A handler returned a Snooze, or a poll was answered "not yet": the job will run again.

job   RunningJob; its due_at is that of the ended attempt, not the next one
"""

job_failed = Signal()
"""An attempt failed and the job will run again: its handler or consumer failed, its TTR ended or its worker died.

job     RunningJob; the row as it is after the commit if the TTR ended or the worker died
error   str
"""

job_dead = Signal()
"""A job is dead, for example after max_attempts failures. job_failed is not sent for the same attempt.

job     RunningJob; the row as it is after the commit if the TTR ended or the worker died
error   str
"""
