"""What all targets share: the ledger, and the manner in which a fault wants them to behave."""

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from ..constants import LATE_SECONDS, SLOW_SECONDS
from ..ledger import Ledger

DELAYS = {"slow": SLOW_SECONDS, "late": LATE_SECONDS}


def manner_file(directory: Path, topic: str) -> Path:
    return directory / f"{topic}.manner"


class Witness:
    """Records the messages of one topic.

    mortal   whether this process dies with the target
    manner   how to behave: "" as it should be, "dies" (killed between receiving and confirming), "slow", "late"
             (confirms after the sender has given up), "twice", "refuses" or "silent"
    """

    def __init__(self, topic: str, *, mortal: bool = True) -> None:
        folder = Path(os.environ["TORTURE_LEDGER"])
        self.topic, self._file, self._mortal = topic, manner_file(folder.parent, topic), mortal
        self._ledger = Ledger(folder, f"target-{topic.rpartition('.')[2]}")
        self._numbers = itertools.count(1)

    @property
    def manner(self) -> str:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return ""

    def receives(self, *messages: tuple[str, str]) -> list[str]:
        """Record messages, each an id and a key, in one entry each. Return the numbers of the receipts."""
        receipts = [f"{self.topic}-{os.getpid()}-{next(self._numbers)}" for _ in messages]
        entries = ({"n": n, "id": id, "key": key} for n, (id, key) in zip(receipts, messages, strict=True))
        self._ledger.write("received", *entries, topic=self.topic)
        if self._mortal and self.manner == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return receipts

    def confirms(self, receipts: list[str], send: Callable[[], object], *, delayed: bool = True) -> None:
        """Record that these receipts are confirmed, and call send(): twice, later or never if the manner says so."""
        manner = self.manner
        if manner == "silent":
            return
        if delayed and manner in DELAYS:
            self._later(DELAYS[manner], lambda: self._confirm(receipts, send))
        else:
            self._confirm(receipts, send, times=2 if manner == "twice" else 1)

    def _confirm(self, receipts: list[str], send: Callable[[], object], *, times: int = 1) -> None:
        self._ledger.write("confirms", *({"n": n} for n in receipts), topic=self.topic)
        for _ in range(times):
            with contextlib.suppress(OSError):  # the sender has given up
                send()

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call in another thread, so that messages that follow are received meanwhile."""
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        timer.start()
