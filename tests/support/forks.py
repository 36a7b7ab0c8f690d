"""Call a function in a forked process."""

import os
import signal
import warnings
from collections.abc import Callable


def succeeds_in_fork(act: Callable[[], object]) -> bool:
    """Call `act` in a forked process, which may take 20 s. Return whether it returned anything but False."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, about threads and forks
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        status = 1
        try:
            status = int(act() is False)
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0
