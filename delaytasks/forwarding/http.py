"""One HTTP request to an address that was checked: no proxy, no redirect, one deadline for the whole call."""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult

from .addresses import Network, resolve
from .targets import TargetDown

MAX_RESPONSE_BYTES = 4096  # more is not read


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Timeout(Exception):
    """The receiver took the request and did not answer within the time of the call."""


def post(
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes,
    *,
    timeout_seconds: float,
    allowed: Sequence[Network] = (),
    context: ssl.SSLContext | None = None,
) -> Response:
    """Send a POST request and return the response, of the body at most MAX_RESPONSE_BYTES.

    The name is resolved once, and the connection goes to that address; SNI, the certificate's name and the Host
    header are those of the URL. Environment variables for proxies have no effect.

    Raises TargetDown if nobody can be reached, Timeout if nobody answers in time.
    """
    deadline = time.monotonic() + timeout_seconds
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    addresses = resolve(host, port, allowed=allowed, timeout_seconds=timeout_seconds)
    with _connect(addresses, port, deadline) as raw, _closing_at(deadline, raw) as expired:
        try:
            sock = context.wrap_socket(raw, server_hostname=host) if context else raw
            with sock:
                return _exchange(sock, url, headers, body, expired)
        except (OSError, http.client.HTTPException) as error:
            if expired.is_set() or isinstance(error, TimeoutError):
                raise Timeout(f"{host} did not answer within {timeout_seconds:g} s.") from None
            raise TargetDown(f"{host}: {type(error).__name__}: {error}") from error


def _connect(addresses: Sequence[str], port: int, deadline: float) -> socket.socket:
    error: OSError | None = None
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=max(0.001, deadline - time.monotonic()))
        except OSError as each:
            error = each
    raise TargetDown(f"No connection to {', '.join(addresses)}, port {port}: {error}")


@contextlib.contextmanager
def _closing_at(deadline: float, sock: socket.socket) -> Iterator[threading.Event]:
    """Shut the connection down at the deadline. A timeout of the socket would start again with every byte.

    Yields an event that is set then.
    """
    expired = threading.Event()
    copy = sock.dup()  # TLS takes the descriptor of the other one

    def expire() -> None:
        expired.set()
        with contextlib.suppress(OSError):
            copy.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), expire)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        timer.join()
        copy.close()


def _exchange(
    sock: socket.socket, url: SplitResult, headers: Mapping[str, str], body: bytes, expired: threading.Event
) -> Response:
    connection = http.client.HTTPConnection(url.netloc)
    connection.sock = sock
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    connection.request("POST", target, body, {**headers, "Connection": "close"})
    response = connection.getresponse()
    if expired.is_set():  # http.client takes headers that were cut off for complete ones
        raise TimeoutError
    return Response(
        response.status, {k.lower(): v for k, v in response.getheaders()}, response.read(MAX_RESPONSE_BYTES)
    )
