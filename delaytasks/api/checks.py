"""System checks of the HTTP API. The ids continue those of delaytasks/checks.py.

Warnings  W011 rate limits are not shared between processes
"""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning, register

TAG = "delaytasks"
UNSHARED = ("locmem.LocMemCache", "dummy.DummyCache")


@register(TAG, deploy=True)
def check_shared_cache(**_kwargs: Any) -> list[CheckMessage]:
    """Return W011 if, with the default cache, each process counts only its own requests, or none at all."""
    backend = str(settings.CACHES.get("default", {}).get("BACKEND", ""))
    if not backend.endswith(UNSHARED):
        return []
    return [
        Warning(
            f"Rate limits are counted in {backend}, which processes do not share.",
            hint='Set CACHES["default"] to a cache that all web processes share, or divide API_RATE_PER_MINUTE by '
            "their number.",
            id="delaytasks.W011",
        )
    ]
