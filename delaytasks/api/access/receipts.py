"""Receipts: what only the holder of a reservation knows.

The answer to pop and reserve has a receipt. Whoever may read the topic's jobs sees their attempt numbers, but no
receipt: it is computed from SECRET_KEY and stored nowhere.
"""

from typing import Any

from django.conf import settings
from django.utils.crypto import constant_time_compare, salted_hmac

_SALT = "delaytasks.api.access.receipts"
LENGTH = 32  # hexadecimal digits


def make(job_id: int, attempt: int, reserved_ms: int, *, secret: str | bytes | None = None) -> str:
    """Return the receipt of a reservation: this attempt of a job, reserved at this time in ms since 1970."""
    text = f"{job_id}:{attempt}:{reserved_ms}"
    return salted_hmac(_SALT, text, secret=secret or settings.SECRET_KEY, algorithm="sha256").hexdigest()[:LENGTH]


def is_valid(receipt: str, job_id: int, attempt: int, reserved_ms: int) -> bool:
    """Return whether this is the reservation's receipt, also if SECRET_KEY was changed since."""
    keys: list[Any] = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return any(constant_time_compare(receipt, make(job_id, attempt, reserved_ms, secret=key)) for key in keys)
