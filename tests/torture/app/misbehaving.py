"""Handlers that misbehave; manners.py says how their jobs end. Each makes its effect first, as far as it may.

A job's body says when: at each attempt, or at the first alone.
"""

import functools
import logging
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connection, transaction

from delaytasks import Snooze, cancel, handler, schedule

from .. import manners
from .timeouts import LEDGER, QUICKLY, leave_effects, witnessed

FOREVER_SECONDS = 600
MEMORY_BYTES = 300_000_000
LIVES_ON_SECONDS = 3
GENERATIONS = 3
STOP = object()  # returned by what is not to come to the fenced last part


def misbehaves(name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Make a handler of the decorated function, which is called with the job when it is to misbehave."""
    manner = manners.MANNERS[name]

    def register(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @handler(
            manner.topic, ttr=manner.ttr_seconds, max_attempts=manners.ATTEMPTS, backoff=QUICKLY,
            atomic=manner.atomic, concurrency=manner.slots,
        )  # fmt: skip
        @witnessed
        @functools.wraps(work)
        def act(job: Any) -> Any:
            if manner.atomic:
                leave_effects(job)
            answer = work(job) if job.body["always"] or job.attempt == 1 else None
            if answer is STOP:
                return None
            if not manner.atomic:
                with job.finishing():
                    leave_effects(job)
            return answer

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
    """Inside the database, where no interrupt of Python's is heard."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [FOREVER_SECONDS])


@misbehaves("lingers")
def lingers(job: Any) -> None:
    """Comes back, and leaves something to be done on commit that does not."""
    transaction.on_commit(lambda: time.sleep(FOREVER_SECONDS))


def do_not_listen() -> None:
    while True:
        try:
            time.sleep(FOREVER_SECONDS)
        except BaseException:  # what no handler should do
            pass


@misbehaves("deaf")
def deaf(job: Any) -> None:
    do_not_listen()


@misbehaves("unalarmed")
def unalarmed(job: Any) -> None:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    do_not_listen()


# -- forks --------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any]) -> None:
    """Do something in a child, which then comes back from here as the parent does, once it has ended."""
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
    """In the parent's transaction, as it thinks."""
    in_child(lambda: leave_effects(job))


@misbehaves("fork-outside")
def fork_outside(job: Any) -> None:
    """Both come back to the fenced last part: the child first."""
    in_child(lambda: None)


@misbehaves("fork-lives-on")
def fork_lives_on(job: Any) -> None:
    if os.fork() == 0:
        time.sleep(LIVES_ON_SECONDS)


@misbehaves("fork-orphan")
def fork_orphan(job: Any) -> None:
    """The parent dies with its transaction open; the child has inherited the socket that it goes over."""
    if os.fork() == 0:
        time.sleep(LIVES_ON_SECONDS)
    else:
        os._exit(1)


# -- eats memory --------------------------------------------------------------------------------


@misbehaves("memory")
def memory(job: Any) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, before[1]))
    eaten = []
    try:
        while True:
            eaten.append(b"x" * 1_000_000)
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


@misbehaves("coroutine")
async def coroutine(job: Any) -> None:
    pass


@misbehaves("negative")
def negative(job: Any) -> Snooze:
    return Snooze(-1)


@misbehaves("absurd")
def absurd(job: Any) -> Snooze:
    return Snooze(1e300)


# -- has to do with itself ----------------------------------------------------------------------


@misbehaves("again")
def again(job: Any) -> None:
    """The next one under its own key, in the same commit; three generations."""
    generation = job.body.get("generation", 1)
    if generation == GENERATIONS:
        return
    n = f"again-{job.id}-{job.attempt}-{time.monotonic_ns()}"
    LEDGER.write("asks", n=n, op="schedule", topic=job.topic, key=job.key, delay_ms=100)
    body = {**job.body, "always": True, "generation": generation + 1}
    made = schedule(job.topic, key=job.key, delay=0.1, body=body)
    transaction.on_commit(lambda: LEDGER.write("answers", n=n, said="scheduled", job=made.id, due_ms=made.due_ms))


@misbehaves("cancels")
def cancels(job: Any) -> None:
    n = f"cancels-{job.id}-{job.attempt}-{time.monotonic_ns()}"
    LEDGER.write("asks", n=n, op="cancel", topic=job.topic, key=job.key, delay_ms=None)
    said = cancel(job.topic, key=job.key)
    LEDGER.write("answers", n=n, said=str(said), job=job.id, due_ms=None)


# -- and its database ---------------------------------------------------------------------------


@misbehaves("close")
@misbehaves("close-outside")
def close(job: Any) -> None:
    connection.close()


@misbehaves("close-raw")
@misbehaves("close-raw-outside")
def close_raw(job: Any) -> None:
    """Behind Django's back."""
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
    """Into one that is not there any more."""
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
