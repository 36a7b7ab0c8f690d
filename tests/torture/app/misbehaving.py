"""Handlers that misbehave; misbehaviours.py defines how their jobs must end. Each leaves its effect first if it can.

A job's body decides when: at each attempt, or only at the first.
"""

import functools
import logging
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connection, transaction

from delaytasks import Snooze, cancel, handler, schedule

from .. import misbehaviours
from .timeouts import LEDGER, QUICKLY, leave_effects, logged

FOREVER_SECONDS = 600
MEMORY_BYTES = 300_000_000
CHUNK_BYTES = 40_000_000  # so large that the C library always gives the memory back when the object is deleted
LIVES_ON_SECONDS = 3
GENERATIONS = 3
STOP = object()  # returned to skip finishing()


def misbehaves(name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register the decorated function as a handler; it is called when the job should misbehave."""
    manner = misbehaviours.MANNERS[name]

    def register(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @handler(
            manner.topic, ttr=manner.ttr_seconds, max_attempts=misbehaviours.ATTEMPTS, backoff=QUICKLY,
            atomic=manner.atomic, concurrency=manner.slots,
        )  # fmt: skip
        @logged
        @functools.wraps(work)
        def act(job: Any) -> Any:
            if manner.atomic:
                leave_effects(job)
            result = work(job) if job.body["always"] or job.attempt == 1 else None
            if result is STOP:
                return None
            if not manner.atomic:
                with job.finishing():
                    leave_effects(job)
            return result

        return work

    return register


# -- raises -------------------------------------------------------------------------------------


@misbehaves("raises")
def raises(job: Any) -> None:
    raise RuntimeError("on purpose")


class FailsToClose:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        raise OSError("in its cleanup")


@misbehaves("cleanup")
def cleanup(job: Any) -> None:
    with FailsToClose(), transaction.atomic():
        try:
            raise RuntimeError("on purpose")
        finally:
            leave_effects(job)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("of the text")

    __repr__ = __str__


@misbehaves("unspeakable")
def unspeakable(job: Any) -> None:
    raise Unspeakable


@misbehaves("megabytes")
def megabytes(job: Any) -> None:
    raise RuntimeError("x" * 10_000_000)


@misbehaves("unprintable")
def unprintable(job: Any) -> None:
    raise RuntimeError("\x00 \ud800")


@misbehaves("recursion")
def recursion(job: Any) -> None:
    recursion(job)


# -- does not return ----------------------------------------------------------------------------


@misbehaves("sleeps")
def sleeps(job: Any) -> None:
    time.sleep(FOREVER_SECONDS)


@misbehaves("queries")
def queries(job: Any) -> None:
    """Wait in the database, where Python cannot interrupt it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [FOREVER_SECONDS])


@misbehaves("lingers")
def lingers(job: Any) -> None:
    """Return, but leave an on_commit callback that does not."""
    transaction.on_commit(lambda: time.sleep(FOREVER_SECONDS))


def ignore_interrupts() -> None:
    while True:
        try:
            time.sleep(FOREVER_SECONDS)
        except BaseException:  # what no handler should do
            pass


@misbehaves("deaf")
def deaf(job: Any) -> None:
    ignore_interrupts()


@misbehaves("unalarmed")
def unalarmed(job: Any) -> None:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    ignore_interrupts()


# -- forks --------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any]) -> None:
    """Run `work` in a forked child that returns from here too; the parent returns after the child has ended."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    else:
        work()


@misbehaves("fork-returns")
def fork_returns(job: Any) -> None:
    in_child(lambda: None)


@misbehaves("fork-raises")
def fork_raises(job: Any) -> None:
    in_child(lambda: raises(job))


@misbehaves("fork-exits")
def fork_exits(job: Any) -> None:
    in_child(lambda: sys.exit(3))


@misbehaves("fork-works")
def fork_works(job: Any) -> None:
    """The child writes in what looks like the parent's transaction."""
    in_child(lambda: leave_effects(job))


@misbehaves("fork-outside")
def fork_outside(job: Any) -> None:
    """Child and parent both reach finishing(), the child first."""
    in_child(lambda: None)


@misbehaves("fork-lives-on")
def fork_lives_on(job: Any) -> None:
    if os.fork() == 0:
        time.sleep(LIVES_ON_SECONDS)


@misbehaves("fork-orphan")
def fork_orphan(job: Any) -> None:
    """The parent dies with an open transaction whose socket the child has inherited."""
    if os.fork() == 0:
        time.sleep(LIVES_ON_SECONDS)
    else:
        os._exit(1)


# -- allocates too much memory --------------------------------------------------------------------------------


@misbehaves("memory")
def memory(job: Any) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, before[1]))
    chunks = []
    try:
        while True:
            chunks.append(b"x" * CHUNK_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -- returns nonsense ---------------------------------------------------------------------------


class Unprintable:
    __repr__ = Unspeakable.__str__


@misbehaves("object")
def an_object(job: Any) -> Any:
    return Unprintable()


@misbehaves("text")
def text(job: Any) -> str:
    return "done!" * 1_000_000


@misbehaves("generator")
def generator(job: Any) -> Iterator[None]:
    yield None


@misbehaves("async-generator")
async def async_generator(job: Any) -> AsyncIterator[None]:
    yield None


@misbehaves("negative")
def negative(job: Any) -> Snooze:
    return Snooze(-1)


@misbehaves("absurd")
def absurd(job: Any) -> Snooze:
    return Snooze(1e300)


# -- changes its own job ----------------------------------------------------------------------


@misbehaves("again")
def again(job: Any) -> None:
    """Schedule the next job under its own key in the same transaction; three generations."""
    generation = job.body.get("generation", 1)
    if generation == GENERATIONS:
        return
    n = f"again-{job.id}-{job.attempt}-{time.monotonic_ns()}"
    LEDGER.write("asks", n=n, op="schedule", topic=job.topic, key=job.key, delay_ms=100)
    body = {**job.body, "always": True, "generation": generation + 1}
    new = schedule(job.topic, key=job.key, delay=0.1, body=body)
    transaction.on_commit(lambda: LEDGER.write("answers", n=n, said="scheduled", job=new.id, due_ms=new.due_ms))


@misbehaves("cancels")
def cancels(job: Any) -> None:
    n = f"cancels-{job.id}-{job.attempt}-{time.monotonic_ns()}"
    LEDGER.write("asks", n=n, op="cancel", topic=job.topic, key=job.key, delay_ms=None)
    answer = cancel(job.topic, key=job.key)
    LEDGER.write("answers", n=n, said=str(answer), job=job.id, due_ms=None)


# -- breaks its database connection ---------------------------------------------------------------------------


@misbehaves("close")
@misbehaves("close-outside")
def close(job: Any) -> None:
    connection.close()


@misbehaves("close-raw")
@misbehaves("close-raw-outside")
def close_raw(job: Any) -> None:
    """Close it without Django's knowledge."""
    connection.ensure_connection()
    connection.connection.close()


@misbehaves("open-block")
@misbehaves("open-outside")
def open_block(job: Any) -> None:
    transaction.atomic().__enter__()


@misbehaves("open-by-hand")
def open_by_hand(job: Any) -> object:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("DELETE FROM torture_effect WHERE id < 0")
    return STOP


@misbehaves("open-and-raises")
def open_and_raises(job: Any) -> None:
    transaction.set_autocommit(False)
    leave_effects(job)
    raise RuntimeError("on purpose")


@misbehaves("autocommit")
def autocommit(job: Any) -> None:
    transaction.set_autocommit(False)


@misbehaves("broken")
def broken(job: Any) -> None:
    transaction.savepoint()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
    except DatabaseError:
        pass


# -- ends its process ---------------------------------------------------------------------------


@misbehaves("sys-exit")
def sys_exit(job: Any) -> None:
    sys.exit(3)


@misbehaves("interrupt")
def interrupt(job: Any) -> None:
    raise KeyboardInterrupt


@misbehaves("generator-exit")
def generator_exit(job: Any) -> None:
    raise GeneratorExit


@misbehaves("os-exit")
def os_exit(job: Any) -> None:
    os._exit(3)


@misbehaves("kill")
def kill(job: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- changes its process ------------------------------------------------------------------------


@misbehaves("ignores-alarm")
def ignores_alarm(job: Any) -> None:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


@misbehaves("directory")
def directory(job: Any) -> None:
    """Change to a directory that no longer exists."""
    with tempfile.TemporaryDirectory() as there:
        os.chdir(there)


@misbehaves("environment")
def environment(job: Any) -> None:
    os.environ.clear()


@misbehaves("zone")
def zone(job: Any) -> None:
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()


@misbehaves("logs")
def logs(job: Any) -> None:
    logging.getLogger("torture").warning("x" * 2_000_000)
