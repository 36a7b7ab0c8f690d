"""A flag for the shutdown of this Celery worker, which the pool's processes can read too.

Celery signals a warm shutdown to the main process only, but a pool process must release its jobs at once. So the flag
is a byte of shared memory, which each worker creates before its pool forks.
"""

import mmap

_flag = mmap.mmap(-1, 1)


def stopping() -> bool:
    return _flag[0] != 0


def reset(**_: object) -> None:
    """Create a cleared flag. Receiver of Celery's worker_init: a process may run or fork several workers."""
    global _flag
    _flag = mmap.mmap(-1, 1)


def stop(**_: object) -> None:
    """Set the flag, in the main process. Receiver of Celery's worker_shutting_down."""
    _flag[0] = 1
