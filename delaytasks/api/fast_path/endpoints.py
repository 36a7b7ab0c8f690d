"""The endpoints that producers and consumers call most, for callers with a token.

Each function returns the reply to a valid request that succeeds. For everything else it raises FallBack, and the view
of the same address answers: so validation, refusals and their texts exist once.
"""

import asyncio
import functools
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.urls import reverse

from ... import conf, handlers, tracing
from ...clock import rfc3339_of, to_seconds
from ...db.groups import Added, Done
from ...db.transitions import NewJob
from ...exceptions import BadInput
from ...jobs import inputs
from ...querysets import has_topic_row
from ...states import State
from ...validators import JSON_NULL
from ...worker.attempt import RunningJob
from .. import notifier, services
from ..access import receipts
from ..access.permissions import CREATE, Right, TokenCaller
from ..batching import adds, attempts
from ..batching.adds import Add, Delete
from ..batching.attempts import Finish, Reserve
from ..batching.batchers import Batcher, FallBack
from ..exceptions import ProblemError
from ..limits import live_jobs
from ..queue_protocol.commands import COMMANDS, envelope, popped_list, popped_one
from ..serializers.fields import MAX_ID
from ..serializers.requests import HeldSerializer, NewJobSerializer, ReserveSerializer
from . import callers
from .readers import Reader
from .responses import Reply

TOPICS_SECONDS = 1.0  # how long the existence of a topic is cached
LARGE_BODY = 4096  # characters; to redact the largest body takes up to 0.05 s


class Call(NamedTuple):
    """A request to one of these endpoints.

    data     the parsed body
    size     of the body, in bytes
    secret   the caller's token, to check it again after a wait
    """

    caller: TokenCaller
    using: str
    data: Mapping[str, Any]
    size: int
    secret: str


Endpoint = Callable[..., Coroutine[Any, Any, Reply]]


def reserves(endpoint: Endpoint, data: Any) -> bool:
    """Return whether the request reserves jobs, which must be released if the client disconnects."""
    return endpoint is reserve or (endpoint is queue and isinstance(data, dict) and data.get("command") == "pop")


@functools.cache
def reader(serializer: Any) -> Reader:
    return Reader(serializer)


def _read(serializer: Any, data: Any) -> dict[str, Any]:
    fields = reader(serializer).read(data) if isinstance(data, dict) else None
    if fields is None:
        raise FallBack
    return fields


@functools.cache
def batcher(name: str, using: str) -> Batcher:
    """Return this process's batcher: "add", "delete", "finish" or "reserve"."""
    do_group: Any = {
        "add": adds.add_group, "delete": adds.delete_group, "finish": attempts.finish_group,
        "reserve": attempts.reserve_group,
    }[name]  # fmt: skip
    of_topic: dict[str, Any] = {}
    if name == "reserve":  # a group for each topic: one may take worker.claim.TAKE_SECONDS and hold up the others
        of_topic = {"undo": functools.partial(attempts.release, using), "part_of": attrgetter("topic")}
    return Batcher(f"{name}-{using}", functools.partial(do_group, using), **of_topic)


async def _submit(call: Call, kind: str, request: Any, **options: Any) -> Any:
    """Return the answer of this kind's batcher."""
    return await batcher(kind, call.using).submit(request, share=call.caller.identity, size=call.size, **options)


# -- the queue protocol -------------------------------------------------------------------------


async def queue(call: Call) -> Reply:
    """POST /queue/: one command."""
    name = call.data.get("command") if isinstance(call.data, dict) else None
    command = _COMMANDS.get(name) if isinstance(name, str) else None
    if command is None or not isinstance(name, str):
        raise FallBack
    fields = _read(COMMANDS[name].request, call.data)
    if "topic" in fields and not call.caller.may(COMMANDS[name].rights, fields["topic"]):
        raise FallBack
    return await command(call, fields)


async def _add_command(call: Call, fields: dict[str, Any]) -> Reply:
    _require_create(call, fields["topic"], fields["on_conflict"])
    job = _new_job(
        topic=fields["topic"], key=fields["id"], delay=fields["delay"], ttr=fields["TTR"],
        expires=fields.get("expires"), priority=fields["priority"],
        body=JSON_NULL if fields["body"] is None else fields["body"],
    )  # fmt: skip
    added = await _add(call, job, mode=fields["on_conflict"], unique=True)
    due_at = rfc3339_of(added.due_ms)
    return Reply(envelope(fields["id"], due_at=due_at, result=added.done.value))


def _require_create(call: Call, topic: str, on_conflict: str) -> None:
    """Raise FallBack unless the caller may create a job with this on_conflict."""
    if not call.caller.may(CREATE if on_conflict == "reject" else Right.PRODUCE, topic):
        raise FallBack


def _new_job(**terms: Any) -> NewJob:
    try:
        return inputs.to_new_job(**terms)
    except BadInput:
        raise FallBack from None


async def _take(call: Call) -> None:
    """Count a new live job. Raises FallBack above the limit: the view may still accept a job whose key is live."""
    try:
        if not live_jobs.take_counted(call.caller, 1):
            await sync_to_async(live_jobs.take_in_thread, thread_sensitive=False)(call.caller, 1, call.using)
    except ProblemError:
        raise FallBack from None


async def _add(call: Call, job: NewJob, *, mode: str, unique: bool) -> Added:
    await _take(call)
    with tracing.scheduling(job.topic) as span:
        add = Add(job._replace(trace_context=span.context), mode, call.caller, unique)
        try:
            added: Added = await _submit(call, "add", add, name=job.key)
        except FallBack:
            span.passed_on()
            raise
        span.scheduled(added.id)
        return added


async def _finish_command(call: Call, fields: dict[str, Any]) -> Reply:
    if "job" in fields and "attempt" not in fields:
        raise FallBack
    given = (fields.get(name) for name in ("topic", "attempt", "receipt"))
    finish = Finish(call.caller, fields.get("job"), fields["id"], *given)
    await _submit(call, "finish", finish)
    return Reply(envelope(fields["id"]))


async def _delete_command(call: Call, fields: dict[str, Any]) -> Reply:
    delete = Delete(fields["id"], fields.get("topic"), call.caller, COMMANDS["delete"].rights, fields["reason"])
    await _submit(call, "delete", delete)
    return Reply(envelope(fields["id"], "cancelled"))


async def _pop_command(call: Call, fields: dict[str, Any]) -> Reply:
    ask = _ask(call, fields["topic"], fields.get("count", 1), fields["consumer"])
    show = popped_list if "count" in fields else popped_one
    return await _reserve(call, ask, fields["wait"], lambda jobs: show(jobs) if jobs else envelope())


_COMMANDS: Mapping[str, Any] = {
    "add": _add_command, "pop": _pop_command, "finish": _finish_command, "delete": _delete_command,
}  # fmt: skip


# -- REST ---------------------------------------------------------------------------------------


async def create(call: Call) -> Reply:
    """POST /jobs/ with one job that is not live yet."""
    if not isinstance(call.data, dict) or "jobs" in call.data:
        raise FallBack
    fields = _read(NewJobSerializer, call.data)
    _require_create(call, fields["topic"], fields["on_conflict"])
    job = _new_job(**services.schedule_arguments(fields))
    added = await _add(call, job, mode="reject", unique=False)
    location = f"{_jobs_path(settings.ROOT_URLCONF)}{added.id}/"
    body = await _shown_body(job, call)
    return Reply(_new_job_data(job, added, body), 201, {"Location": location})


async def _shown_body(job: NewJob, call: Call) -> Any:
    """Return the body of a new job, redacted for its caller: a large one in a thread, so that no request waits."""
    if len(job.body) <= LARGE_BODY or call.caller.may(Right.CONSUME, job.topic):
        return _redacted_body(job, call.caller)
    return await sync_to_async(_redacted_body, thread_sensitive=False)(job, call.caller)


def _redacted_body(job: NewJob, caller: TokenCaller) -> Any:
    return caller.shown_body(json.loads(job.body), job.topic)


@functools.lru_cache(maxsize=8)
def _jobs_path(_urlconf: str) -> str:
    """Return the path of /jobs/, cached: calling reverse() for each job took a quarter of the time of a request."""
    return reverse("delaytasks_api:jobs")


def _new_job_data(job: NewJob, added: Added, body: Any) -> dict[str, Any]:
    """Return the data of a job that was just created, as MadeJobSerializer does. `body` is as the caller may see it."""
    ready = added.due_ms <= added.stored_ms
    return {
        "id": added.id,
        "topic": job.topic,
        "key": job.key,
        "state": (State.READY if ready else State.DELAYED).word,
        "due_at": rfc3339_of(added.due_ms),
        "ttr_seconds": to_seconds(job.ttr_ms),
        "expires_seconds": None if job.expires_ms is None else to_seconds(job.expires_ms),
        "priority": job.priority,
        "attempt": 0,
        "failures": 0,
        "body": body,
        "created_at": rfc3339_of(added.stored_ms),
        "reserved_at": None,
        "lease_until": None,
        "ended_at": None,
        "worker": "",
        "error": "",
        "error_code": None,
        "result": Done.CREATED.value,
    }


async def finish(call: Call, job_id: str) -> Reply:
    """POST /jobs/<id>/finish/."""
    fields = _read(HeldSerializer, call.data)
    if int(job_id) > MAX_ID:
        raise FallBack
    held = Finish(call.caller, id=int(job_id), attempt=fields["attempt"], receipt=fields.get("receipt"))
    await _submit(call, "finish", held)
    return Reply({"state": State.FINISHED.word})


async def reserve(call: Call, topic: str) -> Reply:
    """POST /topics/<topic>/reserve/."""
    if not call.caller.may(Right.CONSUME, topic):
        raise FallBack
    fields = _read(ReserveSerializer, call.data)
    ask = _ask(call, topic, fields["count"], fields["consumer"])
    return await _reserve(call, ask, fields["wait_seconds"], lambda jobs: {"jobs": [_attempt_data(j) for j in jobs]})


def _attempt_data(job: RunningJob) -> dict[str, Any]:
    """Return the data of a reserved job, as AttemptSerializer does."""
    return {
        "id": job.id,
        "topic": job.topic,
        "key": job.key,
        "attempt": job.attempt,
        "receipt": receipts.make(job.id, job.attempt, job.reserved_ms),
        "failures": job.failures,
        "body": job.body,
        "ttr_seconds": to_seconds(job.ttr_ms),
        "due_at": rfc3339_of(job.due_ms),
        "deadline": rfc3339_of(job.lease_ms),
        "late_ms": job.reserved_ms - job.due_ms,
    }


# -- reserving ----------------------------------------------------------------------------------

_known_until: dict[tuple[str, str], float] = {}
_looked_up: dict[tuple[asyncio.AbstractEventLoop, str, str], "asyncio.Future[bool]"] = {}  # lookups in progress


async def _require_known(topic: str, using: str) -> None:
    """Raise FallBack for an unknown topic."""
    if _known_until.get((using, topic), 0) > time.monotonic():
        return
    if topic not in handlers.known() and not await _look_up(topic, using):
        raise FallBack
    _known_until[using, topic] = time.monotonic() + TOPICS_SECONDS


async def _look_up(topic: str, using: str) -> bool:
    """Return whether the topic has a row. Concurrent requests share one query."""
    name = (asyncio.get_running_loop(), using, topic)
    lookup = _looked_up.get(name)
    if lookup is None:
        lookup = asyncio.ensure_future(sync_to_async(_has_row, thread_sensitive=False)(topic, using))
        lookup.add_done_callback(functools.partial(_end_lookup, name))
        _looked_up[name] = lookup
    return await asyncio.shield(lookup)


def _end_lookup(name: tuple[asyncio.AbstractEventLoop, str, str], lookup: "asyncio.Future[bool]") -> None:
    del _looked_up[name]
    if not lookup.cancelled():
        lookup.exception()  # otherwise asyncio logs it if no request waits for it any more


def _has_row(topic: str, using: str) -> bool:
    try:
        return has_topic_row(using, topic)
    finally:
        connections[using].close()


def _ask(call: Call, topic: str, count: int, consumer: str) -> Reserve:
    worker = call.caller.worker(consumer)
    return Reserve(topic, min(count, conf.get().batch_max), worker, call.caller.signature)


async def _reserve(call: Call, ask: Reserve, wait: float, show: Callable[[list[RunningJob]], Any]) -> Reply:
    """Reserve jobs, at once or as soon as some are ready. They are released if the reply cannot be sent.

    show   function: list of the reserved jobs -> data of the reply; the list is empty if none was ready in time
    """
    await _require_known(ask.topic, call.using)
    seconds = min(wait, conf.get().api_max_wait_seconds)
    jobs = await (_wait_for_jobs(call, ask, seconds) if seconds > 0 else _submit(call, "reserve", ask))
    return Reply(show(jobs), on_undelivered=functools.partial(_release, call, ask, jobs) if jobs else None)


async def _wait_for_jobs(call: Call, ask: Reserve, seconds: float) -> list[RunningJob]:
    deadline = time.monotonic() + seconds
    consumers = notifier.waiting_consumers(call.using)
    waiter = consumers.join(ask.topic)
    wake_unused = False  # woken, but has not tried to reserve since
    try:
        while not (jobs := await _submit(call, "reserve", ask)):
            is_late = time.monotonic() >= deadline  # woken again during each try, the consumer would never be answered
            wake_unused = await waiter.wait_for_wake(deadline - time.monotonic())
            if is_late or not wake_unused:
                return []
            await _check_again(call, ask.topic)
            consumers.rejoin(waiter)
        wake_unused = False
        return jobs
    finally:
        consumers.leave(waiter)
        if wake_unused:
            consumers.wake(ask.topic, 1)


def _release(call: Call, ask: Reserve, jobs: list[RunningJob]) -> None:
    """Release jobs whose client is gone, in a thread."""
    asyncio.get_running_loop().run_in_executor(None, attempts.release, call.using, ask, jobs)


async def _check_again(call: Call, topic: str) -> None:
    """Check the caller after a wait: the token or its rights may have been revoked."""
    caller = await callers.find_again(call.secret)
    if caller is None or not caller.may(Right.CONSUME, topic):
        raise FallBack
