"""System checks of the HTTP side; their ids go on where those of delaytasks/checks.py end.

Warnings  W011 the limits of one process only
"""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning, register

TAG = "delaytasks"
OWN_MEMORY = ("locmem.LocMemCache", "dummy.DummyCache")


@register(TAG, deploy=True)
def check_shared_cache(**_kwargs: Any) -> list[CheckMessage]:
    """W011: each process counts for itself, or nobody counts."""
    backend = str(settings.CACHES.get("default", {}).get("BACKEND", ""))
    if not backend.endswith(OWN_MEMORY):
        return []
    return [
        Warning(
            f"Rate limits are counted in {backend}, which other processes do not see.",
            hint='Set CACHES["default"] to a cache that all web processes share, or divide API_RATE_PER_MINUTE by '
            "their number.",
            id="delaytasks.W011",
        )
    ]
