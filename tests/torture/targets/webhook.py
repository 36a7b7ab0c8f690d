"""A receiver of webhooks: `python -m tests.torture.targets.webhook TOPIC PORT`."""

import contextlib
import http.server
import itertools
import json
import sys
import time
from typing import Any

from .witness import DELAYS, Witness

REFUSALS = itertools.cycle((503, 401, 503, 403))
SILENT_SECONDS = 10.0  # longer than the sender waits


def handler(witness: Witness) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            manner = witness.manner
            if manner == "refuses":
                return self.answer(next(REFUSALS))
            assert self.headers["webhook-id"] == event["id"]
            receipts = witness.receives((event["id"], event["subject"]))
            time.sleep(SILENT_SECONDS if manner == "silent" else DELAYS.get(manner, 0))
            witness.confirms(receipts, lambda: self.answer(204), delayed=False)

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def main(topic: str, port: str) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), handler(Witness(topic)))
    server.daemon_threads = True
    print("ready.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
