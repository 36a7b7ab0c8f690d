"""A client that makes jobs in bulk over HTTP: `python -m tests.torture.producer NAME URL TOKEN TOPIC AT_ONCE REST`.

Each request promises AT_ONCE jobs, all or none; between two it rests for REST seconds. An answer that does not come
leaves open which.
"""

import http.client
import json
import os
import signal
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from .ledger import Ledger

DELAY_SECONDS = 1.0
AWAY_SECONDS = 0.5  # the least rest while the web process is away
stopping = threading.Event()


def post(url: str, token: str, items: list[dict]) -> int:
    """The status. Raises OSError or HTTPException when no answer came."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=15)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", parts.path, json.dumps({"jobs": items}), headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def promise(ledger: Ledger, group: str, at_once: int, topic: str, url: str, token: str) -> str:
    """What was said to one request; its entries are in the ledger before and after."""
    keys = [f"{group}-{i}" for i in range(at_once)]
    delays = [DELAY_SECONDS + i / at_once for i in range(at_once)]
    items = [{"topic": topic, "key": k, "delay_seconds": seconds} for k, seconds in zip(keys, delays, strict=True)]
    asked = ({"n": k, "key": k, "delay_ms": int(seconds * 1000)} for k, seconds in zip(keys, delays, strict=True))
    ledger.write("asks", *asked, op="schedule", topic=topic, group=group)
    try:
        status = post(url, token, items)
        said = "scheduled" if status < 300 else "refused" if status < 500 else "broken"
        why = str(status)
    except (OSError, http.client.HTTPException) as error:
        said, why = "broken", repr(error)
    ledger.write("answers", *({"n": key} for key in keys), said=said, job=None, due_ms=None, why=why)
    return said


def main(name: str, url: str, token: str, topic: str, at_once: str, rest_seconds: str) -> None:
    ledger = Ledger(Path(os.environ["TORTURE_LEDGER"]), f"producer-{name}")
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    print("producing", flush=True)
    number = 0
    while not stopping.is_set():
        number += 1
        said = promise(ledger, f"http-{name}-{os.getpid()}-{number}", int(at_once), topic, url, token)
        stopping.wait(float(rest_seconds) if said == "scheduled" else max(AWAY_SECONDS, float(rest_seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
