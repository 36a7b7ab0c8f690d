"""Whether this Celery worker is shutting down, known in its pool's children too.

A byte of shared memory, made before the pool forks: Celery tells only the main process of a
warm shutdown, and what a child holds is to be given back before it waits for anything else.
"""

import mmap

_flag = mmap.mmap(-1, 1)


def stopping() -> bool:
    return _flag[0] != 0


def begin(**_: object) -> None:
    """Receiver of Celery's worker_init: a process may hold one worker after another."""
    _flag[0] = 0


def stop(**_: object) -> None:
    """Receiver of Celery's worker_shutting_down, in the main process."""
    _flag[0] = 1
