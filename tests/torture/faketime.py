"""Wrong wall clocks, by Debian's libfaketime. Only the time of day of a process is changed.

Monotonic clocks, timeouts that use them and the ledger's clock stay correct.
"""

import glob
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.servers import RedisServer

OFF_SECONDS = 30
LIBRARY = "/usr/lib/*/faketime/libfaketime.so.1"
FAKED = Path(__file__).parent / "faked"  # a sitecustomize for a call that the library does not support


def wrong(env: dict[str, str], **faketime: str) -> dict[str, str]:
    """Return environment variables for a process; `faketime` are the library's own, see its manual."""
    found = glob.glob(LIBRARY)
    assert found, f"There is no {LIBRARY}: apt-get install libfaketime."
    path = os.pathsep.join([str(FAKED), env.get("PYTHONPATH", "")])
    own = {
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # its workaround for an old glibc delays each wait of a thread by seconds
        "FAKETIME_DISABLE_SHM": "1",
        "NO_FAKE_STAT": "1",
    }
    return {"LD_PRELOAD": found[0], "PYTHONPATH": path} | own | faketime


def sweep_up() -> None:
    """Remove the shared memory that the library leaves for each killed process."""
    for left in [*glob.glob("/dev/shm/faketime_shm_*"), *glob.glob("/dev/shm/sem.faketime_sem_*")]:
        if not Path(f"/proc/{left.rpartition('_')[2]}").exists():
            Path(left).unlink(missing_ok=True)


def wrong_by(seconds: int, env: dict[str, str]) -> dict[str, str]:
    """Return the same for a clock that is ahead by `seconds`; negative: behind."""
    return wrong(env, FAKETIME=f"{seconds:+d}s")


class Dial:
    """A file with the offset of the clocks, changed while the processes run; they read it each second."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "dial"
        self.turn(0)

    def turn(self, seconds: int) -> None:
        written = self.path.with_suffix(".new")
        written.write_text(f"{seconds:+d}s\n")
        written.replace(self.path)  # atomically, so that no process reads half of it

    def wrong(self, env: dict[str, str]) -> dict[str, str]:
        return wrong(env, FAKETIME_TIMESTAMP_FILE=str(self.path), FAKETIME_CACHE_DURATION="1")


class WrongRedis(RedisServer):
    """A Redis whose clock is 30 s ahead."""

    def spawn(self, command: list[str], **options: Any) -> subprocess.Popen:
        env = dict(os.environ)
        return super().spawn(command, env=env | wrong_by(OFF_SECONDS, env), **options)
