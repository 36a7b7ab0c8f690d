"""A client that makes jobs in bulk over HTTP: `python -m tests.torture.producer NAME URL TOKEN`.

Each request promises fifty jobs, all or none. An answer that does not come leaves open which.
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

AT_ONCE = 50
REST_SECONDS = 0.5
TOPIC = "torture.http"
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


def promise(ledger: Ledger, name: str, number: int, url: str, token: str) -> None:
    keys = [f"{name}-{os.getpid()}-{number}-{i}" for i in range(AT_ONCE)]
    asked = ({"n": f"http-{key}", "key": key} for key in keys)
    ledger.write("asks", *asked, op="schedule", topic=TOPIC, due_ms=None, group=f"{name}-{os.getpid()}-{number}")
    items = [{"topic": TOPIC, "key": key, "delay_seconds": 1 + i / 20} for i, key in enumerate(keys)]
    why = ""
    try:
        status = post(url, token, items)
        said = "scheduled" if status < 300 else "refused" if status < 500 else "broken"
        why = str(status)
    except (OSError, http.client.HTTPException) as error:
        said, why = "broken", repr(error)
    ledger.write("answers", *({"n": f"http-{key}"} for key in keys), said=said, job=None, due_ms=None, why=why)


def main(name: str, url: str, token: str) -> None:
    ledger = Ledger(Path(os.environ["TORTURE_LEDGER"]), f"producer-{name}")
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    print("producing", flush=True)
    number = 0
    while not stopping.wait(REST_SECONDS):
        number += 1
        promise(ledger, name, number, url, token)


if __name__ == "__main__":
    main(*sys.argv[1:])
