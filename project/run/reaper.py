"""Stop the processes of `make run` when `make run` itself is killed, so that none is left behind.

The reaper waits for the lock that `make run` holds. Once it gets the lock, `make run` is gone, and the
reaper sends SIGTERM to its parent, supervisord. supervisord stops the reaper last. Until then the reaper
holds the lock, so the next `make run` waits for processes that are still stopping. If supervisord is gone
too, the reaper has another parent and sends no signal.

Run as a script rather than as a module, to keep the process small.
"""

import fcntl
import os
import signal
import sys

if __name__ == "__main__":
    supervisord = os.getppid()
    with open(sys.argv[1], "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.getppid() == supervisord:
            os.kill(supervisord, signal.SIGTERM)
            signal.pause()
