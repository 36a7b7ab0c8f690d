"""Subcommands for one job, by id or by topic and key: schedule, cancel, reschedule, retry, run-now."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from ...admin_log import Action
from ...db import dialects, transitions
from ...db.retries import in_transaction
from ...exceptions import KeyIsLive
from ...jobs import control, schedule
from ...models import Job, Schedule
from ...outcomes import CANCEL_RESULTS, CancelResult, Result, result_text
from ...states import State
from . import arguments, audited
from .output import Answer, Options, Verb, job_data, job_line


def _changed(job: Job, using: str, result: str) -> Answer:
    job = Job.objects.using(using).get(pk=job.pk)
    now = dialects.database_now(using)
    return Answer({"result": result, "job": job_data(job, now)}, f"{result}: {job_line(job, now)}")


def _change(
    options: Options, using: str, by_key: Callable[..., Job], by_id: Callable[..., Job], result: Result, **terms: Any
) -> Answer:
    """Change a job by one of the two functions, and log it."""
    job_id, topic, key = arguments.target_of(options)
    named: dict[str, Any] = {"topic": topic, "key": key} if job_id is None else {"job_id": job_id}
    terms |= {"using": using, "by": arguments.by_of(options), "reason": options["reason"]}
    do = partial(by_key if job_id is None else by_id, **named, **terms)
    job = in_transaction(using, lambda: _log(do(), Action.of(result), using, options["reason"]))
    return _changed(job, using, result_text(result))


def _schedule_arguments(parser: CommandParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("key", help="the business name, for example order:1042")
    arguments.when(parser)
    parser.add_argument("--body", type=arguments.body, default=None, metavar="JSON", help="passed to the handler")
    parser.add_argument("--ttr", type=arguments.seconds, metavar="SECONDS", help="time to run (default: the topic's)")
    parser.add_argument(
        "--expires", type=arguments.seconds, metavar="SECONDS",
        help="skip the job if it has not begun this long after its due time (default: the topic's)",
    )  # fmt: skip
    parser.add_argument(
        "--priority", type=int, default=0, metavar="0-9", help="run it before due jobs of a lower priority (default: 0)"
    )
    parser.add_argument(
        "--on-conflict", choices=("reject", "keep", "replace", "again"), default="reject",
        help="if a job with this topic and key is live: refuse (default), keep it, replace its terms, or, if it is "
        "running, run it again afterwards; `again` keeps a job that is not running",
    )  # fmt: skip
    arguments.by(parser)


def _log(job: Job, action: Action, using: str, reason: str = "") -> Job:
    audited.write(using, job, action, reason=reason)
    return job


def _schedule(options: Options, using: str) -> Answer:
    def schedule_and_log() -> Job:
        job = schedule.schedule(
            options["topic"], key=options["key"], delay=options["delay"], due_at=options["due"], body=options["body"],
            ttr=options["ttr"], expires=options["expires"], priority=options["priority"],
            on_conflict=options["on_conflict"], using=using, by=arguments.by_of(options),
        )  # fmt: skip
        return _log(job, Action.SCHEDULED, using) if job.is_new else job  # schedule() has logged what it replaced

    try:
        job = in_transaction(using, schedule_and_log)
    except KeyIsLive as error:
        raise KeyIsLive(str(error).replace("on_conflict=", "--on-conflict ")) from error
    result = "scheduled" if job.is_new else "replaced" if options["on_conflict"] == "replace" else "kept"
    if job.runs_again:
        result = "scheduled again"
    return _changed(job, using, result)


def _cancel_arguments(parser: CommandParser) -> None:
    arguments.target(parser)
    arguments.by_and_reason(parser)


def _cancel(options: Options, using: str) -> Answer:
    """Cancel a job. Any result other than "cancelled" is a failure."""
    job_id, topic, key = arguments.target_of(options)
    by, reason = arguments.by_of(options), options["reason"]
    if job_id is not None:
        identity: dict[str, Any] = {"id": job_id}
        label = f"Job {job_id}"
    else:
        identity, label = {"topic": topic, "key": key}, f"{topic} {key}"

    def cancel_and_log() -> CancelResult:
        if job_id is None:
            return _cancel_key(topic, key, using, by, reason)
        done = control.cancel_by_id(job_id, using=using, by=by, reason=reason)
        if done is Result.CANCELLED:
            _log(_job(job_id, using), Action.CANCELLED, using, reason)
        return CANCEL_RESULTS[done]

    result = in_transaction(using, cancel_and_log)
    refused = "" if result is CancelResult.CANCELLED else f"{label} was not cancelled: {result.value}."
    return Answer(identity | {"result": result.value}, result.value, refused)


def _cancel_key(topic: str, key: str, using: str, by: str, reason: str) -> CancelResult:
    """Cancel the job or the series with this key, and log it."""
    found = transitions.find_latest(using, topic, key)
    series = Schedule.objects.using(using).filter(topic=topic, series_key=key)
    is_series = series.exists()
    result = control.cancel(topic, key=key, using=using, by=by, reason=reason)
    if result is CancelResult.CANCELLED and found is not None and found.state not in (State.FINISHED, State.CANCELLED):
        _log(_job(found.id, using), Action.CANCELLED, using, reason)
    elif is_series and not series.exists():  # also "running": a series ends although one of its jobs runs
        audited.write_named(using, "series.cancelled", "series", topic=topic, name=key, reason=reason)
    return result


def _job(job_id: int, using: str) -> Job:
    return Job.objects.using(using).defer("body", "error").get(pk=job_id)


def _reschedule_arguments(parser: CommandParser) -> None:
    arguments.target(parser)
    arguments.when(parser)
    arguments.by_and_reason(parser)


def _reschedule(options: Options, using: str) -> Answer:
    terms = {"due_at": options["due"], "delay": options["delay"]}
    return _change(options, using, control.reschedule, control.reschedule_job, Result.RESCHEDULED, **terms)


def _retry(options: Options, using: str) -> Answer:
    return _change(options, using, control.retry_dead, control.retry_dead, Result.RETRIED)


def _run_now(options: Options, using: str) -> Answer:
    return _change(options, using, control.run_now, control.run_job_now, Result.MADE_READY)


VERBS = {
    "schedule": Verb("Schedule a job.", _schedule_arguments, _schedule),
    "cancel": Verb(
        "Cancel a job that is not running. Prints cancelled, running, already finished or unknown; "
        "the exit code is 0 only for cancelled.",
        _cancel_arguments,
        _cancel,
    ),
    "reschedule": Verb("Move a job that is not running to another due time.", _reschedule_arguments, _reschedule),
    "retry": Verb("Make a dead job ready again and reset its failures to 0.", _cancel_arguments, _retry),
    "run-now": Verb("Make a delayed job ready at once.", _cancel_arguments, _run_now),
}
