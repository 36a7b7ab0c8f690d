"""The witness: what was asked and answered, and what began and ended, written down by whoever saw it.

One file per process, a JSON line per entry, each synced to the disk before its writer goes on. What an entry
says happened has happened; what an entry says was *asked* may have happened or not until its answer is there.

kind      fields besides `at` (CLOCK_BOOTTIME in ns, the same for all processes here), `pid` and `thread`
asks      n, op, topic, key, delay_ms | None   a call that is about to be made; n is unique in the ledger. With
                                             `group`: one of several that one call asks for, all or none
answers   n, said, job, due_ms | None          its answer, written after the commit; said: see below
begins    job, topic, key, attempt, due_ms, now_ms   the first thing a handler does; now_ms by the database's clock
ends      job, attempt, how                    the last thing a handler does itself: its effects may yet be refused
outside   job, topic, attempt                  an effect outside the database, in the file itself
finishes  job, attempt                         a consumer heard that this attempt finished the job

`op` is one of: schedule (also to replace), rolled back (scheduled, and the caller's own transaction given up),
cancel, move, run now. `said` is one of: scheduled, moved, cancelled, running, already finished, unknown, refused
(nothing was changed; `why` names the exception), rolled back, broken (no answer came: it may have happened or not).
Whoever makes a job asks here first, a handler too: a job that nobody asked for is a phantom.
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
    """A clock that all processes of this machine share and that nobody sets: not the database's, not the wall's."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Ledger:
    """One process's pages. A forked child that writes opens pages of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self._pid = 0
        self._file = -1

    def write(self, kind: str, *entries: Entry, **fields: Any) -> None:
        """Return when the entry, or all of `entries`, is on the disk. Several threads may write: it is one write."""
        seen = {"kind": kind, "at": now_ns(), "pid": os.getpid(), "thread": threading.get_native_id()}
        lines = [json.dumps({**seen, **entry, **fields}) for entry in entries or ({},)]
        os.write(self._page(), "".join(line + "\n" for line in lines).encode())
        os.fsync(self._page())

    def _page(self) -> int:
        if self._pid != os.getpid():
            path = self.directory / f"{self.name}-{os.getpid()}.ledger"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._pid, self._file = os.getpid(), os.open(path, flags, 0o644)
        return self._file


def read(directory: Path) -> list[Entry]:
    """Every entry of every process, the oldest first.

    The last line of a page may be torn, as its writer may have been killed in it: such an entry never was. A line
    that is no JSON in the middle raises ValueError: then the witness itself is broken.
    """
    entries = [entry for page in sorted(directory.glob("*.ledger")) for entry in _entries(page)]
    return sorted(entries, key=lambda entry: entry["at"])


def _entries(page: Path) -> Iterator[Entry]:
    *lines, _torn = page.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{page.name}, line {number} is no entry: {line[:100]!r}") from error
