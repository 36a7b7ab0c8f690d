"""schedule, cancel, reschedule, retry, run-now: one job, by number or by topic and key."""

from typing import Any

from django.core.management.base import CommandParser

from ... import changing, dialect, scheduling
from ...changing import CancelResult
from ...models import Job
from . import arguments
from .answer import Answer, Options, Verb, job_data, job_line


def _changed(job: Job, using: str, said: str) -> Answer:
    job = Job.objects.using(using).get(pk=job.pk)
    now = dialect.database_now(using)
    return Answer({"result": said, "job": job_data(job, now)}, f"{said}: {job_line(job, now)}")


def _schedule_arguments(parser: CommandParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("key", help="the business name, for example order:1042")
    arguments.when(parser)
    parser.add_argument("--body", type=arguments.body, default=None, metavar="JSON", help="what the handler gets")
    parser.add_argument("--ttr", type=arguments.seconds, metavar="SECONDS", help="time to run (default: the topic's)")
    parser.add_argument(
        "--on-conflict", choices=("reject", "keep", "replace"), default="reject",
        help="if a live job has this topic and key: refuse (the default), keep it, or give it these terms",
    )  # fmt: skip
    arguments.by(parser)


def _schedule(options: Options, using: str) -> Answer:
    job = scheduling.schedule(
        options["topic"], key=options["key"], delay=options["delay"], due_at=options["due"], body=options["body"],
        ttr=options["ttr"], on_conflict=options["on_conflict"], using=using, by=arguments.by_of(options),
    )  # fmt: skip
    said = "scheduled" if job.is_new else {"keep": "kept"}.get(options["on_conflict"], "replaced")
    return _changed(job, using, said)


def _cancel_arguments(parser: CommandParser) -> None:
    arguments.target(parser)
    arguments.by(parser)


def _cancel(options: Options, using: str) -> Answer:
    """The truthful word; only "cancelled" is a success."""
    job_id, topic, key = arguments.target_of(options)
    by = arguments.by_of(options)
    if job_id is not None:
        result = changing.cancel_job(job_id, using=using, by=by)
        named: dict[str, Any] = {"id": job_id}
        asked = f"Job {job_id}"
    else:
        result = changing.cancel(topic, key=key, using=using, by=by)
        named, asked = {"topic": topic, "key": key}, f"{topic} {key}"
    refused = "" if result is CancelResult.CANCELLED else f"{asked} was not cancelled: {result.value}."
    return Answer(named | {"result": result.value}, result.value, refused)


def _reschedule_arguments(parser: CommandParser) -> None:
    arguments.target(parser)
    arguments.when(parser)
    arguments.by(parser)


def _reschedule(options: Options, using: str) -> Answer:
    job_id, topic, key = arguments.target_of(options)
    due, delay, by = options["due"], options["delay"], arguments.by_of(options)
    if job_id is not None:
        job = changing.reschedule_job(job_id, due_at=due, delay=delay, using=using, by=by)
    else:
        job = changing.reschedule(topic, key, due_at=due, delay=delay, using=using, by=by)
    return _changed(job, using, "rescheduled")


def _retry(options: Options, using: str) -> Answer:
    job_id, topic, key = arguments.target_of(options)
    by = arguments.by_of(options)
    if job_id is not None:
        return _changed(changing.retry_dead(job_id=job_id, using=using, by=by), using, "retried")
    return _changed(changing.retry_dead(topic, key, using=using, by=by), using, "retried")


def _run_now(options: Options, using: str) -> Answer:
    job_id, topic, key = arguments.target_of(options)
    by = arguments.by_of(options)
    if job_id is not None:
        return _changed(changing.run_job_now(job_id, using=using, by=by), using, "made ready")
    return _changed(changing.run_now(topic, key, using=using, by=by), using, "made ready")


VERBS = {
    "schedule": Verb("Schedule a job.", _schedule_arguments, _schedule),
    "cancel": Verb(
        "Cancel a job that has not begun. Says cancelled, running, already finished or unknown; "
        "the exit code is 0 for cancelled alone.",
        _cancel_arguments,
        _cancel,
    ),
    "reschedule": Verb("Move a job that has not begun to another due time.", _reschedule_arguments, _reschedule),
    "retry": Verb("Make a dead job ready again, its failures at 0.", _cancel_arguments, _retry),
    "run-now": Verb("Make a job that waits for its due time ready at once.", _cancel_arguments, _run_now),
}
