"""The name of a worker and of its processes, in the column `worker` and in the tokens of run slots.

A process of a worker is named "<worker>/<process id>", with ".<thread id>" in a thread other than the main one. A
process that belongs to no worker with a heartbeat is named "<host>:<process id>".

Each thread of a worker with a heartbeat also stores its current run in memory that the worker's processes share. So the
main process finds the run slots and jobs that a run could not give up because Redis or the database was down. If a
database error ends a run, its thread also stores the database and the job whose handler was called: only that job may
be charged a failure.
"""

import mmap
import os
import socket
import struct
import threading
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

_THREADS = 1 << 22  # more than any id of a thread or process on Linux; memory that is not written costs nothing
_RUN = struct.Struct("=II")  # the numbers of a run and of its database

_CALLED = struct.Struct("=Iq")  # the number of a database, the id of a job
_NO_HANDLER = -1  # the run had called no handler

_worker: str | None = None  # inherited by the processes of the pool, which are forked later
# For each thread its run, or 0 outside a run. The last number changes with each run that fails.
_runs = mmap.mmap(-1, (_THREADS + 1) * _RUN.size)
_called = mmap.mmap(-1, _THREADS * _CALLED.size)  # for each thread: see store_called_job(); 0: unknown


def start_worker() -> str:
    """Name this process and the processes that it forks from now on after a new worker. Return the worker's name."""
    global _worker
    _worker = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    return _worker


def stop_worker() -> None:
    global _worker
    _worker = None
    _store_called(0, 0)


def worker_name() -> str | None:
    """Return the name of this process's worker. None: it has no worker with a heartbeat that would notice its death."""
    return _worker


def process_name() -> str:
    process = f"{_worker}/{os.getpid()}" if _worker else f"{socket.gethostname()}:{os.getpid()}"
    if threading.current_thread() is threading.main_thread():
        return process
    return f"{process}.{threading.get_native_id()}"


def new_slot_token() -> str:
    """Return a token for a run slot: "<process>#<random>", without the process if its death would not be noticed."""
    token = uuid.uuid4().hex
    return f"{process_name()}#{token}" if _worker else token


def is_slot_of(token: str, prefix: str) -> bool:
    """Return whether a run slot belongs to the process `prefix`, or to the worker if the prefix ends with "/"."""
    owner, separator, _ = token.partition("#")
    return bool(separator) and (owner.startswith(prefix) if prefix.endswith("/") else owner.split(".")[0] == prefix)


@contextmanager
def in_run(token: str, using: str) -> Iterator[None]:
    """Store that this thread is in the run that has this slot token, in this database, until the end of the block.

    If the block raises, last_failure() changes.
    """
    if _worker is None:
        yield
        return
    thread = threading.get_native_id()
    _store(thread % _THREADS, _number(token), _number(using))
    try:
        yield
    except BaseException:
        _store(thread % _THREADS, 0)  # before last_failure() changes: its readers must see that the run has ended
        _store(_THREADS, _number(token))
        raise
    _store(thread % _THREADS, 0)


def store_called_job(using: str, job_id: int | None) -> None:
    """Store the job whose handler was called but that had not ended when this thread's run failed; None: no such job.

    A thread stores this for one database only. For any other, was_called() assumes that all handlers were called.
    """
    if _worker is not None:
        _store_called(_number(using), _NO_HANDLER if job_id is None else job_id)


def clear_called(using: str) -> None:
    """Delete what store_called_job() has stored for this thread and database."""
    if _load_called(threading.get_native_id())[0] == _number(using):
        _store_called(0, 0)


def read_called_job(using: str, process: str) -> int:
    """Return what this process or thread has stored with store_called_job(), for was_called(); 0: nothing."""
    database, called = _load_called(_thread_id(process))
    return called if database == _number(using) else 0


def was_called(called: int, job_id: int) -> bool:
    """Return whether the handler of the job may have been called.

    called   the result of read_called_job()
    """
    return called in (0, job_id)


def last_failure() -> int:
    """Return a number that changes with each run of this worker's processes that raises."""
    return _load(_THREADS)[0]


def is_in_run(process: str, using: str) -> bool:
    """Return whether this process of this worker, or this thread of it, is in a run of this database."""
    run, database = _load(_thread_id(process) % _THREADS)
    return run != 0 and database == _number(using)


def is_slot_of_current_run(token: str) -> bool:
    """Return whether the thread of this worker that took the run slot is still in that run."""
    owner = token.partition("#")[0]
    return _load(_thread_id(owner) % _THREADS)[0] == _number(token)


def _thread_id(process: str) -> int:
    """Return the id of the thread in "<worker>/<process id>[.<thread id>]"; that of a main thread is its process's."""
    return int(process.rpartition("/")[2].rpartition(".")[2])


def _number(name: str) -> int:
    """Return a number other than 0 for the token of a run slot or the alias of a database."""
    return zlib.crc32(name.encode()) or 1


def _store(index: int, number: int, database: int = 0) -> None:
    _RUN.pack_into(_runs, index * _RUN.size, number, database)


def _load(index: int) -> tuple[int, int]:
    number, database = _RUN.unpack_from(_runs, index * _RUN.size)
    return number, database


def _store_called(database: int, job_id: int) -> None:
    _CALLED.pack_into(_called, threading.get_native_id() % _THREADS * _CALLED.size, database, job_id)


def _load_called(thread: int) -> tuple[int, int]:
    database, job_id = _CALLED.unpack_from(_called, thread % _THREADS * _CALLED.size)
    return database, job_id


def slot_owner(token: str) -> tuple[str, int] | None:
    """Return (worker, process id) of a run slot, or None if its token does not name them."""
    owner, separator, _ = token.partition("#")
    worker, slash, process = owner.rpartition("/")
    return (worker, int(process.split(".")[0])) if separator and slash else None
