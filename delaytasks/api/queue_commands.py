"""The commands of the queue protocol: what each does to a job, and the table of what it takes and who may use it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rest_framework.response import Response

from .. import clock, consuming, engine, scheduling
from ..attempt import Attempt
from ..changing import CancelResult
from ..exceptions import LeaseLost
from ..models import Job
from ..rules import JSON_NULL
from ..states import State
from . import acting, creating
from .access import Right
from .fields import Json, delay_field, rfc3339, topic_field, ttr_field
from .queue_fields import (
    Malformed,
    consumer_field,
    count_field,
    held_fields,
    id_field,
    mode_field,
    reason_field,
    request_of,
    wait_field,
)
from .queue_jobs import Call, Refused, ended, seconds, unknown, utc, why_lost
from .serializers import Strict, why_field


def envelope(id: str = "", value: Any = None, *, error: str = "", **extras: Any) -> dict[str, Any]:
    """What every answer is."""
    return {"success": not error, "error": error, "id": id, "value": value, **extras}


# -- the commands -------------------------------------------------------------------------------


def add(call: Call) -> Response:
    """Make a promise: the job becomes ready `delay` seconds from now."""
    sent, mode = call.sent, call.sent["on_conflict"]
    creating.check_replacing(call.caller, sent["topic"], mode)
    body = JSON_NULL if sent["body"] is None else sent["body"]
    make = partial(
        scheduling.schedule_unique,
        sent["topic"], key=call.id, among=call.caller.topics(call.using), delay=sent["delay"], ttr=sent["TTR"],
        body=body, on_conflict=mode, using=call.using, by=call.caller.signature,
    )  # fmt: skip
    job = creating.logged(make, call.caller, mode, call.using)
    result = "created" if job.is_new else {"keep": "kept", "replace": "replaced"}[mode]
    return Response(envelope(call.id, due_at=rfc3339(job.due_at), result=result))


def pop(call: Call) -> Response:
    """Reserve ready jobs for as long as their TTR: one as the answer itself, or `count` of them as a list."""
    sent = call.sent
    return call.view.poll(
        sent["topic"], count=sent.get("count", 1), wait_seconds=sent["wait"],
        consumer=sent["consumer"], show=_popped_list if "count" in sent else _popped_one, empty=envelope(),
    )  # fmt: skip


def _popped_one(held: Sequence[Attempt]) -> dict[str, Any]:
    job = _popped(held[0])
    return envelope(job.pop("id"), job.pop("body"), **job)


def _popped_list(held: Sequence[Attempt]) -> dict[str, Any]:
    return envelope(value=[_popped(attempt) for attempt in held])


def _popped(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.key,
        "body": attempt.body,
        "job": attempt.id,
        "attempt": attempt.attempt,
        "TTR": seconds(attempt.ttr_ms),
        "due_at": rfc3339(attempt.due_at),
        "deadline": rfc3339(attempt.deadline),
    }


def finish(call: Call) -> Response:
    """The work is done: the job ends."""
    _as_holder(call, lambda job, attempt: consuming.finish(job, attempt, using=call.using, by=call.caller.signature))
    return Response(envelope(call.id))


def touch(call: Call) -> Response:
    """Begin the TTR anew, from now; the value is the new deadline."""
    deadline = _as_holder(call, lambda job, attempt: consuming.touch(job, attempt, using=call.using))
    return Response(envelope(call.id, rfc3339(deadline)))


def release(call: Call) -> Response:
    """Give the job back, due at once or after `delay`. With an `error` the attempt counts as failed."""
    terms = {"delay": call.sent.get("delay"), "error": call.sent["error"]}
    state = _as_holder(
        call, lambda job, attempt: consuming.release(job, attempt, using=call.using, by=call.caller.signature, **terms)
    )
    return Response(envelope(call.id, State(state).word))


def bury(call: Call) -> Response:
    """Declare the job dead: nobody is to try it again before staff have looked at it."""
    terms = {"by": call.caller.signature, "reason": call.sent["reason"]}
    _as_holder(call, lambda job, attempt: consuming.bury(job, attempt, using=call.using, **terms))
    return Response(envelope(call.id, State.DEAD.word))


def _as_holder(call: Call, do: Callable[[int, int], Any]) -> Any:
    """do(job's number, attempt): by the attempt that was sent, or by the one that the account holds.

    It is done first and explained afterwards, so what was refused is explained by what is there now.
    """
    job = call.live()
    attempt = call.attempt_at(job)
    try:
        return do(job.pk, attempt)
    except LeaseLost:
        now = Job.objects.using(call.using).filter(pk=job.pk).first()
        raise Refused(why_lost(call.using, now, attempt) if now else unknown(call.id)) from None


def delete(call: Call) -> Response:
    """Call the promise off; the value is the word for what was found."""
    job = call.find()
    if job is None:
        raise Refused(unknown(call.id), CancelResult.UNKNOWN.value)
    result = acting.cancel(job, call.caller, call.using, call.sent["reason"])
    if result is not CancelResult.CANCELLED:
        raise Refused(_why_not_deleted(call, job, result), result.value)
    return Response(envelope(call.id, result.value))


def _why_not_deleted(call: Call, job: Job, result: CancelResult) -> str:
    now = Job.objects.using(call.using).filter(pk=job.pk).first()
    if now is None or result is CancelResult.UNKNOWN:
        return unknown(call.id)
    if now.ended_at is not None:
        return ended(now)
    return f"{call.id!r} is running, as attempt {now.attempt} since {utc(now.reserved_at)}; it is not disturbed."


def peek(call: Call) -> Response:
    """Look at the job of an id, or at the one that is next in a topic. Changes nothing."""
    if "id" in call.sent:
        job = call.find()
        if job is None:
            raise Refused(unknown(call.id))
    elif "topic" in call.sent:
        waiting = Job.objects.using(call.using).live().filter(topic=call.sent["topic"], state=State.DELAYED)
        job = waiting.order_by("due_at", "id").first()  # what is ready is due before what is not
    else:
        raise Malformed("id is missing: give the id of a job, or a topic to see what is next in it.")
    return Response(envelope(job.key, _seen(job, call)) if job else envelope())


def _seen(job: Job, call: Call) -> dict[str, Any]:
    return {
        "id": job.key,
        "topic": job.topic,
        "state": job.shown_state(clock.from_ms(engine.now_ms(call.using))).word,
        "due_at": rfc3339(job.due_at),
        "attempt": job.attempt,
        "failures": job.failures,
        "TTR": seconds(job.ttr_ms),
        "body": call.caller.shown_body(job.body),
        "created_at": rfc3339(job.created_at),
        "deadline": rfc3339(job.lease_until) if job.lease_until else None,
        "ended_at": rfc3339(job.ended_at) if job.ended_at else None,
        "error": job.error,
    }


# -- the table ----------------------------------------------------------------------------------


class Command(NamedTuple):
    """run      does it
    rights      one of them is needed, on the topic of the job
    request     the serializer of its fields
    """

    run: Callable[[Call], Response]
    rights: tuple[Right, ...]
    request: type[Strict]


def _command(run: Callable[[Call], Response], *rights: Right, **fields: Any) -> tuple[str, Command]:
    rules = fields.pop("rules", {})
    return run.__name__, Command(run, rights, request_of(run.__name__, run.__doc__ or "", rules, **fields))


COMMANDS: Mapping[str, Command] = dict([
    _command(
        add, Right.PRODUCE,
        topic=topic_field(), id=id_field(), delay=delay_field(help_text="Seconds from now until it is due."),
        TTR=ttr_field(help_text="Seconds that an attempt may take."), body=Json(help_text="For the consumer."),
        on_conflict=mode_field(),
    ),
    _command(
        pop, Right.CONSUME,
        topic=topic_field(), count=count_field(), wait=wait_field(), consumer=consumer_field(),
    ),
    _command(finish, Right.CONSUME, **held_fields()),
    _command(
        delete, Right.PRODUCE, Right.MANAGE,
        id=id_field(), topic=topic_field(required=False), reason=why_field(),
    ),
    _command(touch, Right.CONSUME, **held_fields()),
    _command(release, Right.CONSUME, **held_fields(
        delay=delay_field(required=False, help_text="Seconds until it is due again."),
        error=reason_field("What went wrong; the attempt has failed then."),
    )),
    _command(bury, Right.CONSUME, **held_fields(reason=reason_field("Why; kept as the job's error."))),
    _command(
        peek, Right.READ, id=id_field(required=False), topic=topic_field(required=False),
        rules={"anyOf": [{"required": ["id"]}, {"required": ["topic"]}]},
    ),
])  # fmt: skip
