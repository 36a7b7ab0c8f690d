"""A log of requests, answers and attempts, written by the processes that make or see them.

One file per process, one JSON line per entry, each synced to disk before its writer continues. An entry proves
that its event happened; a request without an answer may or may not have taken effect.

kind      fields besides `at` (CLOCK_BOOTTIME in ns, the same for all processes here), `pid` and `thread`
asks      n, op, topic, key, delay_ms | None   a call about to be made; n is unique in the ledger. With `group`:
                                             one of several jobs of one call, all or none
answers   n, said, job, due_ms | None          the answer, written after the commit; said: see below
begins    job, topic, key, attempt, due_ms, now_ms   the first act of a handler; now_ms by the database's clock
ends      job, attempt, how                    the last act of a handler; its effects may still be rolled back
outside   job, topic, attempt                  an effect outside the database: this entry itself
finishes  job, attempt                         a consumer was told that this attempt finished the job
received  n, id, topic, key                    a target has this message; n is unique, and id what the sender gave it
confirms  n, topic                             a target is about to confirm this receipt

`op` is one of: schedule (also to replace), rolled back (scheduled in a transaction that the caller rolls back),
cancel, move, run now. `said` is one of: scheduled, moved, cancelled, running, already finished, unknown, refused
(nothing was changed; `why` names the exception), rolled back, broken (no answer; it may have taken effect or not).
Each scheduled job is entered here first, also by handlers: a job without an entry is a phantom.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def now_ns() -> int:
    """Read a clock that all processes of this machine share and that is never set, unlike wall clocks."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Ledger:
    """The file of one process. A forked child that writes opens its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self._pid = 0
        self._file = -1

    def write(self, kind: str, *entries: Entry, **fields: Any) -> None:
        """Write the entry, or all of `entries`, in one write; return when they are on disk. Thread-safe."""
        common = {"kind": kind, "at": now_ns(), "pid": os.getpid(), "thread": threading.get_native_id()}
        lines = [json.dumps({**common, **entry, **fields}) for entry in entries or ({},)]
        os.write(self._page(), "".join(line + "\n" for line in lines).encode())
        os.fsync(self._page())

    def _page(self) -> int:
        if self._pid != os.getpid():
            path = self.directory / f"{self.name}-{os.getpid()}.ledger"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._pid, self._file = os.getpid(), os.open(path, flags, 0o644)
        return self._file


def read(directory: Path) -> list[Entry]:
    """Return the entries of all processes, the oldest first.

    An incomplete last line is ignored: its writer was killed. An invalid line before it raises ValueError.
    """
    entries = [entry for page in sorted(directory.glob("*.ledger")) for entry in _entries(page)]
    return sorted(entries, key=lambda entry: entry["at"])


def _entries(page: Path) -> Iterator[Entry]:
    *lines, _incomplete = page.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{page.name}, line {number} is not an entry: {line[:100]!r}") from error
