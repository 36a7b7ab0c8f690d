"""A client that creates jobs in bulk over HTTP: `python -m tests.torture.producer NAME URL TOKEN TOPIC AT_ONCE REST`.

Each request creates AT_ONCE jobs, all or none, with REST seconds between requests. Without an answer it is unknown
whether they were created.
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
DOWN_SECONDS = 0.5  # the shortest pause while the web process is down
stopping = threading.Event()


def post(url: str, token: str, items: list[dict]) -> int:
    """Post the jobs and return the status. Raises OSError or HTTPException without an answer."""
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
    """Send one request, logged before and after; return what was answered."""
    keys = [f"{group}-{i}" for i in range(at_once)]
    delays = [DELAY_SECONDS + i / at_once for i in range(at_once)]
    items = [{"topic": topic, "key": k, "delay_seconds": seconds} for k, seconds in zip(keys, delays, strict=True)]
    entries = ({"n": k, "key": k, "delay_ms": int(seconds * 1000)} for k, seconds in zip(keys, delays, strict=True))
    ledger.write("asks", *entries, op="schedule", topic=topic, group=group)
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
        stopping.wait(float(rest_seconds) if said == "scheduled" else max(DOWN_SECONDS, float(rest_seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
