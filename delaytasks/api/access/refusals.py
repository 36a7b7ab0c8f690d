"""Record refused requests in the audit log, at a bounded rate: an attacker must not fill the database."""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction

from ... import databases
from ...jobs import audit_log
from ...jobs.audit_log import Source
from ...models import AuditEntry, Job

logger = logging.getLogger("delaytasks")
REFUSED = "request.refused"
WINDOW_SECONDS = 60
MAX_PER_ADDRESS, MAX_PER_PROCESS = 20, 200  # audit entries per minute
MAX_ADDRESSES = 1_000  # addresses that are counted at the same time


class Limiter:
    """Counts refusals by address in a fixed window of a minute."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._began = monotonic()
        self._written = 0
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._left_out = 0

    def admit(self, address: str) -> int | None:
        """Return None if this refusal must not be recorded, else how many were left out since the last recorded one."""
        with self._lock:
            if self._monotonic() - self._began >= WINDOW_SECONDS:
                self._began, self._written = self._monotonic(), 0
                self._counts.clear()
            self._counts[address] = self._counts.pop(address, 0) + 1
            if len(self._counts) > MAX_ADDRESSES:
                self._counts.popitem(last=False)
            if self._counts[address] > MAX_PER_ADDRESS or self._written >= MAX_PER_PROCESS:
                self._left_out += 1
                return None
            self._written += 1
            left_out, self._left_out = self._left_out, 0
            return left_out


limiter = Limiter()
_executor = ThreadPoolExecutor(1, thread_name_prefix="delaytasks-refusals")


def record(source: Source, actor: str, why: str, topic: str = "") -> None:
    """Write an entry for a refused request, or leave it out if there are too many. Never raises a database error.

    actor   who asked: an account with its token, a user, the prefix of a wrong token, or "" without any
    """
    left_out = limiter.admit(source.address)
    if left_out is None:
        return
    after = {"why": why} | ({"left_out": left_out} if left_out else {})
    topic = topic if len(topic) <= 100 and topic.isprintable() else ""
    entry = audit_log.entry(REFUSED, actor[:255], "request", topic=topic, after=after, source=source)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _write(entry)
    else:
        _executor.submit(_write_in_thread, entry)  # an event loop must not wait for the database


def record_no_receipt(caller: Any, job: Job) -> None:
    """Write an entry for a request for an attempt that another account holds, or with a wrong receipt."""
    record(caller.source, caller.signature, f"receipt of job {job.pk}, attempt {job.attempt}", job.topic)


def _write(entry: AuditEntry) -> None:
    using = databases.alias()
    try:
        with transaction.atomic(using):
            audit_log.record(using, [entry])
    except (DatabaseError, InterfaceError) as error:
        logger.warning("Could not record a refused request from %s: %s", entry.address, error)


def _write_in_thread(entry: AuditEntry) -> None:
    try:
        _write(entry)
    finally:
        connections.close_all()
