"""Ends the parts of `make run` when `make run` itself was killed: no process is left behind.

It waits for the lock that `make run` holds as long as it lives. Getting it means that `make run` is
gone, so supervisord, its parent, is asked to stop. supervisord stops this program last: until then it
holds the lock, and the next `make run` waits for parts that are still stopping. Should supervisord
be gone, too, then it has a new parent, who is none of our business.

Run as a file, not as a module, so that it stays as small as a program of three lines should be.
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
