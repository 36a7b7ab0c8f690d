"""Receipts: a receipt proves that its sender holds a reservation.

The response to pop and reserve contains the receipt. Other callers can read the job and its attempt number, but not the
receipt: it is computed from SECRET_KEY and stored nowhere. Its owner may pass it on.
"""

import functools
import hashlib
import hmac
from typing import Any

from django.conf import settings
from django.utils.crypto import constant_time_compare
from django.utils.encoding import force_bytes

from ...clock import to_ms
from ...models import Job

_SALT = "delaytasks.api.access.receipts"
LENGTH = 32  # hexadecimal digits


def make(job_id: int, attempt: int, reserved_ms: int, *, secret: str | bytes | None = None) -> str:
    """Return the receipt of a reservation: this attempt of a job, reserved at this time in ms since 1970."""
    key = _key(secret or settings.SECRET_KEY)
    return hmac.digest(key, b"%d:%d:%d" % (job_id, attempt, reserved_ms), "sha256").hex()[:LENGTH]


@functools.lru_cache(maxsize=8)
def _key(secret: str | bytes) -> bytes:
    """Return the key of Django's salted_hmac(), cached: Django derives it on each call."""
    return hashlib.sha256(_SALT.encode() + force_bytes(secret)).digest()


def is_proof(receipt: str | None, account: str, job: Job) -> bool:
    """Return whether the receipt is that of the job's reservation; without a receipt, whether the account made it."""
    if receipt is None:
        return is_of(account, job.worker)
    return job.reserved_at is not None and is_valid(receipt, job.pk, job.attempt, to_ms(job.reserved_at))


def is_of(account: str, worker: str) -> bool:
    """Return whether the account, or one of its consumers, made the reservation. worker: stored with the job."""
    return worker == account or worker.startswith(f"{account}/")


def is_valid(receipt: str, job_id: int, attempt: int, reserved_ms: int) -> bool:
    """Return whether this is the reservation's receipt. It may be made with a key of SECRET_KEY_FALLBACKS."""
    keys: list[Any] = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return any(constant_time_compare(receipt, make(job_id, attempt, reserved_ms, secret=key)) for key in keys)
