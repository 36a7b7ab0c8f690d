"""Finish the attempts of concurrent requests with one statement, and reserve jobs for many consumers with another."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import InterfaceError, OperationalError, connections, transaction

from ...db import groups
from ...db.retries import is_retryable
from ...db.transitions import AttemptRow
from ...states import Outcome
from ...worker import leases
from ...worker.attempt import RunningJob
from ...worker.completion import Completion, after_end, ending, notify
from ..access import receipts
from ..access.permissions import Right
from .adds import LOCK_WAIT_MS, known_topics, visible
from .batchers import FallBack

logger = logging.getLogger("delaytasks")


class Finish(NamedTuple):
    """A caller's request to finish an attempt. It names the job by its id, by its key, or by both.

    topic     of the key; None: any topic that the caller sees
    attempt   None: the attempt that the caller holds
    receipt   of the reservation; None: the caller's account must have made it
    """

    caller: Any
    id: int | None = None
    key: str | None = None
    topic: str | None = None
    attempt: int | None = None
    receipt: str | None = None


def finish_group(using: str, finishes: Sequence[Finish]) -> list[bool | FallBack]:
    """Finish each attempt that its caller holds. The answer is True; FallBack for the others.

    FallBack also if the job was scheduled again meanwhile, or if its topic is that of a declared timeout: this needs
    further statements. The attempts are looked up before the transaction; the statement that ends them refuses attempts
    that have lost their job since.
    """
    held = _find_held(using, finishes)
    firsts = {job.id: job for job in held if job is not None and job.topic not in after_end}
    ended = _end(using, list(firsts.values()))
    done = [job is not None and job is firsts.get(job.id) and job.id in ended for job in held]
    return [True if each else FallBack() for each in done]


def _end(using: str, jobs: Sequence[RunningJob]) -> set[int]:
    """Finish these jobs in one transaction. Return the ids of those that were still held."""
    if not jobs:
        return set()
    completions = [Completion(job, Outcome.FINISHED) for job in jobs]
    ended = groups.end_each(using, [ending(each) for each in completions], LOCK_WAIT_MS)
    completed = [(each, ended[each.held.id].due_ms) for each in completions if each.held.id in ended]
    if completed:
        transaction.on_commit(lambda: notify(using, completed), using=using, robust=True)
    return set(ended)


def _find_held(using: str, finishes: Sequence[Finish]) -> list[RunningJob | None]:
    """Return the job of each finish, or None if its caller does not hold exactly one such job."""
    known = known_topics(using, [each.topic for each in finishes if each.key is not None])
    topics = [[] if each.key is None else visible(each.topic, each.caller, known) for each in finishes]
    ids = sorted({each.id for each in finishes if each.id is not None and each.key is None})
    pairs = {(topic, str(each.key)) for each, among in zip(finishes, topics, strict=True) for topic in among}
    rows = groups.find_attempts(using, ids, sorted(pairs))
    by_id = {row.claimed.id: row for row in rows}
    by_pair = {(row.claimed.topic, row.claimed.key): row for row in rows}
    found: list[RunningJob | None] = []
    for each, among in zip(finishes, topics, strict=True):
        by_name = [by_pair.get((topic, str(each.key))) for topic in among]
        candidates = [by_id.get(each.id or 0)] if each.key is None else by_name
        mine = [row for row in candidates if row is not None and _holds(each, row)]
        held = [RunningJob(row.claimed, using, row.worker, each.caller.signature) for row in mine]
        found.append(held[0] if len(held) == 1 else None)
    return found


def _holds(finish: Finish, row: AttemptRow) -> bool:
    """Return whether the caller may finish this attempt and has proved that it holds it."""
    job, name = row.claimed, finish.caller.name
    if finish.receipt is None:
        has_proof = receipts.is_of(name, row.worker)
    else:
        has_proof = receipts.is_valid(finish.receipt, job.id, job.attempt, job.reserved_ms)
    is_meant = finish.id in (None, job.id) and row.held_by(job.attempt if finish.attempt is None else finish.attempt)
    return has_proof and is_meant and bool(finish.caller.may(Right.CONSUME, job.topic))


# -- reserve ------------------------------------------------------------------------------------


class Reserve(NamedTuple):
    """Jobs to reserve for a consumer.

    most     largest number of jobs
    worker   stored in Job.worker: the name of the caller's account, or account/consumer
    by       the caller's signature, stored in the event if the jobs are released again
    """

    topic: str
    most: int
    worker: str
    by: str = ""


def reserve_group(using: str, reserves: Sequence[Reserve]) -> list[list[RunningJob] | Exception]:
    """Reserve ready jobs of one topic for each consumer; those who asked first get them first.

    A list is empty if none is left.
    """
    topic, asked = reserves[0].topic, dict(enumerate(reserves))
    try:
        dealt = _reserve_of_topic(using, topic, asked)
    except (OperationalError, InterfaceError) as error:
        return [FallBack() if is_retryable(error) else error for _ in reserves]
    except Exception as error:
        logger.warning("topic %s: reserving failed, Django's views serve the consumers: %r", topic, error)
        return [FallBack() for _ in reserves]
    return [dealt[n] for n in asked]


def _reserve_of_topic(using: str, topic: str, asked: Mapping[int, Reserve]) -> dict[int, list[RunningJob]]:
    if len({each.worker for each in asked.values()}) == 1:
        return _deal(using, topic, asked)
    with transaction.atomic(using):  # or else an error would leave jobs reserved in another consumer's name
        dealt = _deal(using, topic, asked)
        workers = {job.id: job.worker for jobs in dealt.values() for job in jobs}
        if set(workers.values()) - {next(iter(asked.values())).worker}:
            groups.assign_workers(using, workers)
    return dealt


def _deal(using: str, topic: str, asked: Mapping[int, Reserve]) -> dict[int, list[RunningJob]]:
    """Claim ready jobs, all in the name of the first consumer, until each consumer has one or none is left."""
    dealt: dict[int, list[RunningJob]] = {n: [] for n in asked}
    name = next(iter(asked.values())).worker
    while waiting := [n for n in asked if not dealt[n]]:
        try:
            jobs = iter(leases.reserve(topic, sum(asked[n].most for n in waiting), using=using, worker=name))
        except Exception as error:
            if connections[using].in_atomic_block or len(waiting) == len(asked):
                raise
            logger.warning("topic %s: reserving failed, some consumers get no job yet: %r", topic, error)
            break  # the claims for the others are committed
        for n in waiting:
            dealt[n] = list(itertools.islice(jobs, asked[n].most))
            for job in dealt[n]:
                job.worker = asked[n].worker
        if not dealt[waiting[0]]:
            break
    return dealt


def release(using: str, reserve: Reserve, jobs: Sequence[RunningJob]) -> None:
    """Release jobs whose consumer is gone, then close this thread's database connections.

    A job that cannot be released is taken back when its TTR is over.
    """
    try:
        for job in jobs:
            _try_release(using, job, reserve.by)
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close()


def _try_release(using: str, job: RunningJob, by: str) -> None:
    try:
        leases.release(job.id, job.attempt, using=using, by=by)
    except Exception as error:  # the other jobs must be released
        logger.warning("Could not release %r, whose consumer is gone: %s", job, error)
