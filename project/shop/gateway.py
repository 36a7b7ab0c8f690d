"""Client of the payment gateway, and a local fake of the gateway.

`get_refund_state()` is the client. `python -m project.shop.gateway PORT` runs the fake: GET /refunds/REFERENCE
returns {"state": "pending" | "settled" | "failed"} or hangs. The reference alone determines the sequence of
responses: see `plan_for`. It also stands for the devices of the shop: POST /devices/NAME takes a command.
"""

import hashlib
import json
import sys
import time
import urllib.request
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import quote, unquote

PENDING, SETTLED, FAILED, HANG = "pending", "settled", "failed", "hang"
PLANS = (  # responses to the first, second, ... request about a refund; the last one repeats
    (SETTLED,),
    (PENDING, SETTLED),
    (PENDING, PENDING, SETTLED),
    (PENDING, FAILED),
    (HANG, PENDING, SETTLED),
    (PENDING,),  # never settled or failed: needs review by staff
)
HANG_SECONDS = 60

# The fake gateway is on this machine: ignore proxies from the environment.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_refund_state(reference: str) -> str:
    """Return the state of a refund at the gateway: pending, settled or failed.

    Also return pending if the gateway hangs, is down or sends an invalid response.
    """
    from django.conf import settings  # imported here: the fake gateway runs without Django

    url = f"{settings.SHOP_GATEWAY_URL}/refunds/{quote(reference, safe='')}"
    try:
        with _opener.open(url, timeout=settings.SHOP_GATEWAY_TIMEOUT_SECONDS) as response:
            state = json.load(response)["state"]
    except (OSError, ValueError, LookupError, TypeError):
        return PENDING
    return state if state in (SETTLED, FAILED) else PENDING


def plan_for(reference: str) -> tuple[str, ...]:
    """Return the fake gateway's sequence of responses for a reference."""
    return PLANS[hashlib.sha256(reference.encode()).digest()[0] % len(PLANS)]


class FakeGateway(ThreadingHTTPServer):
    """The fake gateway. Counts the requests about each refund in memory.

    commands   the last commands to devices, as (name, command)
    """

    daemon_threads = True

    def __init__(self, port: int = 0, *, hang_seconds: float = HANG_SECONDS, quiet: bool = False) -> None:
        super().__init__(("127.0.0.1", port), RefundRequest)
        self.hang_seconds, self.quiet = hang_seconds, quiet
        self.commands: deque[tuple[str, str]] = deque(maxlen=100)
        self._requests: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next_state(self, reference: str) -> str:
        plan = plan_for(reference)
        with self._lock:
            previous = self._requests[reference]
            self._requests[reference] += 1
        return plan[min(previous, len(plan) - 1)]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: clients disconnect while a response hangs."""


class RefundRequest(BaseHTTPRequestHandler):
    server: FakeGateway

    def do_GET(self) -> None:
        folder, _, reference = self.path.strip("/").partition("/")
        if self.path == "/health":
            self.respond(200, {"ok": True})
        elif folder == "refunds" and reference:
            self.respond_refund(unquote(reference))
        else:
            self.respond(404, {"error": "Not found. Use /refunds/REFERENCE."})

    def do_POST(self) -> None:
        folder, _, name = self.path.strip("/").partition("/")
        command = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode(errors="replace")
        if folder == "devices" and name:
            self.server.commands.append((unquote(name), command))
            self.respond(200, {"ok": True})
        else:
            self.respond(404, {"error": "Not found. Use /devices/NAME."})

    def respond_refund(self, reference: str) -> None:
        state = self.server.next_state(reference)
        if state == HANG:
            time.sleep(self.server.hang_seconds)
            state = PENDING
        self.respond(200, {"reference": reference, "state": state})

    def respond(self, status: int, content: dict) -> None:
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
    FakeGateway(int(sys.argv[1])).serve_forever()
