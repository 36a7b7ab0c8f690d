"""Where the targets of this installation are, by topic. TORTURE_TARGETS has them as JSON; without it there are none."""

import functools
import json
import os
from typing import Any

KAFKA = "kafka://"  # before the bootstrap servers


@functools.cache
def addresses() -> dict[str, str]:
    found: dict[str, str] = json.loads(os.environ.get("TORTURE_TARGETS", "{}"))
    return found


def brokers() -> dict[str, Any]:
    """Return DELAYTASKS["BROKERS"]: each topic has a broker of its own, of the same name."""
    return {topic: _broker(address) for topic, address in addresses().items()}


def _broker(address: str) -> Any:
    if address.startswith(KAFKA):
        return {"bootstrap.servers": address.removeprefix(KAFKA)}
    return address
