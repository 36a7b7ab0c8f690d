"""The commands of the queue protocol, with a table of their fields and required rights."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rest_framework.response import Response

from ... import databases
from ...clock import rfc3339, rfc3339_of, to_seconds
from ...db import lookups
from ...exceptions import KeyIsLive, LeaseLost
from ...jobs import schedule
from ...models import Job
from ...outcomes import CancelResult, error_text
from ...states import State
from ...validators import JSON_NULL
from ...worker import leases
from ...worker.attempt import RunningJob
from .. import job_actions, services
from ..access import receipts
from ..access.permissions import CREATE, Right
from ..serializers.fields import JSONField, delay_field, expires_field, priority_field, topic_field, ttr_field
from ..serializers.requests import StrictSerializer, reason_field
from .fields import (
    Malformed,
    build_request_serializer,
    consumer_field,
    count_field,
    id_field,
    lease_fields,
    message_field,
    mode_field,
    wait_field,
)
from .lookup import Call, Refused, ended_message, lease_lost_message, unknown_message, utc


def envelope(id: str = "", value: Any = None, *, error: str = "", **extras: Any) -> dict[str, Any]:
    """Return the body of a response; every response has this form."""
    return {"success": not error, "error": error, "id": id, "value": value, **extras}


# -- the commands -------------------------------------------------------------------------------


def add(call: Call) -> Response:
    """Create a job that becomes ready after `delay` seconds."""
    fields, mode = call.fields, call.fields["on_conflict"]
    call.caller.require_create(fields["topic"], mode)
    services.require_reason_to_replace(call.caller, fields["topic"], mode)
    body = JSON_NULL if fields["body"] is None else fields["body"]
    make = partial(
        schedule.schedule_unique,
        fields["topic"], key=call.id, among=call.caller.topics(call.using), delay=fields["delay"], ttr=fields["TTR"],
        expires=fields.get("expires"), priority=fields["priority"], body=body, on_conflict=mode, using=call.using,
        by=call.caller.signature,
    )  # fmt: skip
    try:
        job = services.make_and_log(make, call.caller, mode, call.using, (fields["topic"], call.id))
    except KeyIsLive as error:
        raise services.shown_error(error, call.caller, [fields["topic"]]) from error
    due_at = job.again_due_at if job.runs_again and job.again_due_at else job.due_at
    return Response(envelope(call.id, due_at=rfc3339(due_at), result=services.result_of(job, mode)))


def pop(call: Call) -> Response:
    """Reserve ready jobs for their TTR: one job as the envelope itself, or up to `count` jobs as a list."""
    fields = call.fields
    return call.view.poll(
        fields["topic"], count=fields.get("count", 1), wait_seconds=fields["wait"],
        consumer=fields["consumer"], show=popped_list if "count" in fields else popped_one, empty=envelope(),
    )  # fmt: skip


def popped_one(attempts: Sequence[RunningJob]) -> dict[str, Any]:
    job = _popped(attempts[0])
    return envelope(job.pop("id"), job.pop("body"), **job)


def popped_list(attempts: Sequence[RunningJob]) -> dict[str, Any]:
    return envelope(value=[_popped(attempt) for attempt in attempts])


def _popped(attempt: RunningJob) -> dict[str, Any]:
    return {
        "id": attempt.key,
        "body": attempt.body,
        "job": attempt.id,
        "attempt": attempt.attempt,
        "receipt": receipts.make(attempt.id, attempt.attempt, attempt.reserved_ms),
        "TTR": to_seconds(attempt.ttr_ms),
        "due_at": rfc3339_of(attempt.due_ms),
        "deadline": rfc3339_of(attempt.lease_ms),
    }


def finish(call: Call) -> Response:
    """Finish a reserved job."""
    _with_lease(call, lambda job, attempt: leases.finish(job, attempt, using=call.using, by=call.caller.signature))
    return Response(envelope(call.id))


def touch(call: Call) -> Response:
    """Restart the TTR from now. The value is the new deadline."""
    deadline = _with_lease(call, lambda job, attempt: leases.touch(job, attempt, using=call.using))
    return Response(envelope(call.id, rfc3339(deadline)))


def release(call: Call) -> Response:
    """Release a job, due at once or after `delay`. With an `error` the attempt counts as failed."""
    terms = {"delay": call.fields.get("delay"), "error": call.fields["error"]}
    state = _with_lease(
        call, lambda job, attempt: leases.release(job, attempt, using=call.using, by=call.caller.signature, **terms)
    )
    return Response(envelope(call.id, State(state).word))


def bury(call: Call) -> Response:
    """Bury a job: it is dead, and is not tried again until staff retry it."""
    terms = {"by": call.caller.signature, "reason": call.fields["reason"]}
    _with_lease(call, lambda job, attempt: leases.bury(job, attempt, using=call.using, **terms))
    return Response(envelope(call.id, State.DEAD.word))


def _with_lease(call: Call, do: Callable[[int, int], Any]) -> Any:
    """Return do(job id, attempt), with the attempt in the request or else the latest one.

    Raises Refused. If the lease is lost, the job is read again, so that the refusal describes its current state.
    """
    job = call.live_job()
    attempt = int(call.fields.get("attempt", job.attempt))
    try:
        call.check_held(job, attempt)
        return do(job.pk, attempt)
    except LeaseLost:
        now = Job.objects.using(call.using).filter(pk=job.pk).first()
        raise Refused(lease_lost_message(call.using, now, attempt) if now else unknown_message(call.id)) from None


def delete(call: Call) -> Response:
    """Cancel a job that is not reserved. The value is the result of the cancel."""
    job = call.find_job()
    if job is None:
        raise Refused(unknown_message(call.id), CancelResult.UNKNOWN.value)
    result = job_actions.cancel(job, call.caller, call.using, call.fields["reason"])
    if result is not CancelResult.CANCELLED:
        raise Refused(_not_deleted_message(call, job, result), result.value)
    return Response(envelope(call.id, result.value))


def _not_deleted_message(call: Call, job: Job, result: CancelResult) -> str:
    now = Job.objects.using(call.using).filter(pk=job.pk).first()
    if now is None or result is CancelResult.UNKNOWN:
        return unknown_message(call.id)
    if now.ended_at is not None:
        return ended_message(now)
    return f"{call.id!r} is running, as attempt {now.attempt} since {utc(now.reserved_at)}, and was not cancelled."


def peek(call: Call) -> Response:
    """Show the job with an id, or the next job of a topic. Changes nothing."""
    if "id" in call.fields:
        job = call.find_job()
        if job is None:
            raise Refused(unknown_message(call.id))
    elif "topic" in call.fields:
        topic = call.fields["topic"]
        waiting = Job.objects.using(call.using).live().filter(topic=topic, state=State.DELAYED)
        ready = waiting.filter(pk__in=lookups.ready_ids(call.using, topic, limit=1))
        job = ready.first() or waiting.order_by("due_at", "id").first()
    else:
        raise Malformed("id is missing: give the id of a job, or a topic to see its next job.")
    return Response(envelope(job.key, _peeked(job, call)) if job else envelope())


def _peeked(job: Job, call: Call) -> dict[str, Any]:
    return {
        "id": job.key,
        "topic": job.topic,
        "state": job.shown_state(databases.now(call.using)).word,
        "due_at": rfc3339(job.due_at),
        "attempt": job.attempt,
        "failures": job.failures,
        "TTR": to_seconds(job.ttr_ms),
        "body": call.caller.shown_body(job.body, job.topic),
        "created_at": rfc3339(job.created_at),
        "deadline": rfc3339(job.lease_until) if job.lease_until else None,
        "ended_at": rfc3339(job.ended_at) if job.ended_at else None,
        "error": error_text(job.error),
    }


# -- the table ----------------------------------------------------------------------------------


class Command(NamedTuple):
    """A command of the protocol.

    run       function that executes the command
    rights    the caller needs one of these rights on the topic of the job
    request   serializer of the command's fields
    """

    run: Callable[[Call], Response]
    rights: tuple[Right, ...]
    request: type[StrictSerializer]


def _command(run: Callable[[Call], Response], *rights: Right, **fields: Any) -> tuple[str, Command]:
    rules = fields.pop("rules", {})
    return run.__name__, Command(
        run, rights, build_request_serializer(run.__name__, run.__doc__ or "", rules, **fields)
    )


COMMANDS: Mapping[str, Command] = dict([
    _command(
        add, *CREATE,
        topic=topic_field(), id=id_field(), delay=delay_field(help_text="Seconds from now until it is due."),
        TTR=ttr_field(help_text="Time to run: seconds that one attempt may take."),
        body=JSONField(help_text="Any JSON, passed to the consumer."),
        on_conflict=mode_field(),
        expires=expires_field(help_text="Seconds after its due time in which the job may begin; later it is skipped."),
        priority=priority_field(),
    ),
    _command(
        pop, Right.CONSUME,
        topic=topic_field(), count=count_field(), wait=wait_field(), consumer=consumer_field(),
    ),
    _command(finish, Right.CONSUME, **lease_fields()),
    _command(
        delete, Right.PRODUCE, Right.MANAGE,
        id=id_field(), topic=topic_field(required=False), reason=reason_field(),
    ),
    _command(touch, Right.CONSUME, **lease_fields()),
    _command(release, Right.CONSUME, **lease_fields(
        delay=delay_field(required=False, help_text="Seconds until it is due again."),
        error=message_field("What went wrong. The attempt counts as failed."),
    )),
    _command(bury, Right.CONSUME, **lease_fields(reason=message_field("The reason; stored as the job's error."))),
    _command(
        peek, Right.READ, id=id_field(required=False), topic=topic_field(required=False),
        # Not anyOf: see WhenSerializer.
        rules={"if": {"not": {"required": ["id"]}}, "then": {"required": ["topic"]}},
    ),
])  # fmt: skip
