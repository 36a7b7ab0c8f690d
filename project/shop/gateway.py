"""The payment gateway: what the shop asks, and a small local stand-in that answers like a real one.

`ask()` is the client. `python -m project.shop.gateway PORT` is the stand-in: GET /refunds/REFERENCE
answers {"state": "pending" | "settled" | "failed"} or does not answer at all. Which of these, and
when, follows from the reference alone: see `plan_of`.
"""

import hashlib
import json
import sys
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import quote, unquote

PENDING, SETTLED, FAILED, HANG = "pending", "settled", "failed", "hang"
PLANS = (  # what a refund's first, second, ... question is answered with; the last answer stays
    (SETTLED,),
    (PENDING, SETTLED),
    (PENDING, PENDING, SETTLED),
    (PENDING, FAILED),
    (HANG, PENDING, SETTLED),
    (PENDING,),  # for ever: a case for a person
)
HANG_SECONDS = 60

# The stand-in is on this machine: a proxy that the environment may name is not for it.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(reference: str) -> str:
    """What the gateway says about a refund: pending, settled or failed.

    A gateway that hangs, is down or talks nonsense has not decided anything: that is pending, too.
    """
    from django.conf import settings  # not at the top: the stand-in below runs without Django

    url = f"{settings.SHOP_GATEWAY_URL}/refunds/{quote(reference, safe='')}"
    try:
        with _opener.open(url, timeout=settings.SHOP_GATEWAY_TIMEOUT_SECONDS) as answer:
            state = json.load(answer)["state"]
    except (OSError, ValueError, LookupError, TypeError):
        return PENDING
    return state if state in (SETTLED, FAILED) else PENDING


def plan_of(reference: str) -> tuple[str, ...]:
    """The answers to expect for this reference, in order."""
    return PLANS[hashlib.sha256(reference.encode()).digest()[0] % len(PLANS)]


class Gateway(ThreadingHTTPServer):
    """The stand-in. It counts how often it was asked about each refund, in memory only."""

    daemon_threads = True

    def __init__(self, port: int = 0, *, hang_seconds: float = HANG_SECONDS, quiet: bool = False) -> None:
        super().__init__(("127.0.0.1", port), RefundRequest)
        self.hang_seconds, self.quiet = hang_seconds, quiet
        self._asked: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next_answer(self, reference: str) -> str:
        plan = plan_of(reference)
        with self._lock:
            asked = self._asked[reference]
            self._asked[reference] += 1
        return plan[min(asked, len(plan) - 1)]

    def handle_error(self, request: object, client_address: object) -> None:
        """Somebody who hangs up while we hang is not an error here."""


class RefundRequest(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        folder, _, reference = self.path.strip("/").partition("/")
        if self.path == "/health":
            self.answer(200, {"ok": True})
        elif folder == "refunds" and reference:
            self.answer_refund(unquote(reference))
        else:
            self.answer(404, {"error": "Ask for /refunds/REFERENCE."})

    def answer_refund(self, reference: str) -> None:
        state = self.server.next_answer(reference)
        if state == HANG:
            time.sleep(self.server.hang_seconds)
            state = PENDING
        self.answer(200, {"reference": reference, "state": state})

    def answer(self, status: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        if not self.server.quiet and self.path != "/health":
            super().log_message(format, *args)


if __name__ == "__main__":
    Gateway(int(sys.argv[1])).serve_forever()
