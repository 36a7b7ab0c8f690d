"""A cache of tokens and their grants in each web process. Most requests need no query for them.

An answer of the database is used for at most five seconds. All answers are dropped at once when a token, a grant or an
account changes through Django's ORM in this process. Other processes drop theirs with the next request that they count
for a rate limit: it also reads the change mark, a number in the shared cache that is replaced after each change.
Without a shared cache, and after a change in plain SQL, the five seconds apply. An expiry date is checked on each use.
"""

import hashlib
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from django.db import models, transaction

from ...monitoring.caching import shared_cache

logger = logging.getLogger("delaytasks")
KEPT_SECONDS = 5.0
UNKNOWN_SECONDS = 1.0  # for wrong tokens: a client that repeats one must not keep the database busy
MAX_KNOWN, MAX_UNKNOWN = 10_000, 1_000
CHANGE_KEY = "delaytasks:tokens:change"  # key of the change mark in the shared cache; its value is a random number
CHANGE_SECONDS = 30 * 86_400


class Answer(NamedTuple):
    """The result of looking up a secret in the database.

    token    the valid token, or None
    rights   what the grants of the token allow
    change   the change mark that this process knew before the lookup
    """

    token: Any
    rights: Any = None
    change: int | None = None


class TokenCache:
    """The cached answers of one process. Secrets are kept as hashes."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, read_change: Callable[[], int] = int) -> None:
        self.change: int | None = None
        self._read_change = read_change
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._epoch = 0
        self._known: OrderedDict[bytes, tuple[float, Answer]] = OrderedDict()
        self._unknown: OrderedDict[bytes, tuple[float, Answer]] = OrderedDict()

    @property
    def epoch(self) -> int:
        """The number of clear() calls. A lookup that began in an earlier epoch may have an outdated answer."""
        return self._epoch

    def get(self, secret: str) -> Answer | None:
        """Return the cached answer, or None if there is none or it is too old."""
        key, now = hashed(secret), self._monotonic()
        with self._lock:
            asked_at, answer = self._known.get(key) or self._unknown.get(key) or (0.0, None)
        if answer is None:
            return None
        seconds = UNKNOWN_SECONDS if answer.token is None else KEPT_SECONDS
        return answer if now - asked_at < seconds else None

    def get_or_ask(self, secret: str, ask: Callable[[str], tuple[Any, Any]]) -> Answer:
        """Return the cached answer, or look it up. ask(secret) returns (valid token, its rights) or (None, None)."""
        return self.get(secret) or self.ask(secret, ask)

    def ask(self, secret: str, ask: Callable[[str], tuple[Any, Any]]) -> Answer:
        """Return the answer of ask(secret), and cache it unless clear() was called meanwhile."""
        if self.change is None:
            self.change = self._read_change()  # before the lookup, so that the answer is not older than the mark
        epoch, change, asked_at = self._epoch, self.change, self._monotonic()
        answer = Answer(*ask(secret), change)
        with self._lock:
            if epoch == self._epoch:
                self._keep(hashed(secret), asked_at, answer)
        return answer

    def _keep(self, key: bytes, asked_at: float, answer: Answer) -> None:
        kept, most = (self._unknown, MAX_UNKNOWN) if answer.token is None else (self._known, MAX_KNOWN)
        (self._known if kept is self._unknown else self._unknown).pop(key, None)
        kept[key] = asked_at, answer
        kept.move_to_end(key)
        if len(kept) > most:
            kept.popitem(last=False)

    def note_change(self, change: int) -> None:
        """Drop all answers if this mark differs from the last one."""
        if change != self.change:
            self.clear()
            self.change = change

    def discard(self, secret: str) -> None:
        """Drop the answer for this secret: the next call looks it up."""
        with self._lock:
            self._known.pop(hashed(secret), None)

    def clear(self) -> None:
        with self._lock:
            self._epoch += 1
            self._known.clear()
            self._unknown.clear()

    def __len__(self) -> int:
        return len(self._known) + len(self._unknown)


def hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def publish_change(using: str) -> None:
    """Drop the answers of this process and, on commit, replace the change mark, so that all processes drop theirs."""
    answers.clear()
    transaction.on_commit(_replace_mark, using=using)


def _replace_mark() -> None:
    answers.clear()  # another thread may have cached an answer before the commit
    change = secrets.randbelow(2**62)
    try:
        shared_cache.set_text(CHANGE_KEY, str(change), CHANGE_SECONDS)
        answers.change = change
    except Exception as error:  # cache backends have no common exception
        logger.warning("The cache is unavailable: web processes notice a changed token within 5 s. %r", error)


def _read_change() -> int:
    try:
        return int(shared_cache.get_text(CHANGE_KEY) or 0)
    except Exception as error:
        logger.warning("The cache is unavailable: the mark of the last changed token was not read. %r", error)
        return 0


answers = TokenCache(read_change=_read_change)


def on_change(sender: Any, using: str, **_: object) -> None:
    """Call publish_change(). Receiver of post_save and post_delete."""
    publish_change(using)


class PublishingQuerySet(models.QuerySet):
    """A QuerySet whose update() publishes the change to all processes. save() and delete() have signals for that."""

    def update(self, **values: Any) -> int:
        changed = super().update(**values)
        if values.keys() != {"last_used_at"}:
            publish_change(self.db)
        return changed
