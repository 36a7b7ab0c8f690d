"""Send one HTTP request to a checked address: no proxy, no redirect, one deadline for the whole call."""

import contextlib
import http.client
import os
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
SYSTEM_SECONDS = 300  # the certificates of the system are loaded again after so long
_contexts: dict[str | None, tuple[float, ssl.SSLContext]] = {}  # ca_file -> (version of its certificates, context)


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
    """Send a POST request. Return the response, with at most MAX_RESPONSE_BYTES of its body.

    The host is resolved once, and the connection goes to an address found then. SNI, the certificate check and the
    Host header use the host of the URL. Environment variables for proxies have no effect.

    Raises TargetDown if no connection can be made or it breaks, Timeout if no response arrives in time.
    """
    deadline = time.monotonic() + timeout_seconds
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    addresses = resolve(host, port, allowed=allowed, timeout_seconds=timeout_seconds)
    with _connect(addresses, port, deadline) as raw, _closing_at(deadline, raw) as expired:
        try:
            sock = context.wrap_socket(raw, server_hostname=host) if context else raw
        except OSError as error:  # nothing was sent
            raise TargetDown(f"No TLS connection to {host}: {type(error).__name__}: {error}") from error
        try:
            with sock:
                if time.monotonic() >= deadline:
                    raise TargetDown(f"{host}, port {port} was connected too late: nothing was sent.")
                return _exchange(sock, url, headers, body, expired)
        except (OSError, http.client.HTTPException) as error:
            if expired.is_set() or isinstance(error, TimeoutError):
                raise Timeout(f"{host} did not answer within {timeout_seconds:g} s.") from None
            raise TargetDown(f"{host}: {type(error).__name__}: {error}") from error


def _connect(addresses: Sequence[str], port: int, deadline: float) -> socket.socket:
    """Connect to the first address that answers; each has an equal part of the time that is left. Raises TargetDown."""
    error: OSError | None = None
    for number, address in enumerate(addresses):
        seconds = (deadline - time.monotonic()) / (len(addresses) - number)
        try:
            sock = socket.create_connection((address, port), timeout=max(0.001, seconds))
        except OSError as each:
            error = each
        else:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            return sock
    raise TargetDown(f"No connection to {', '.join(addresses)}, port {port}: {error}")


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of a file; None: those of the system.

    Loading them takes longer than the rest of a request, so the context is cached until the file changes, or for
    SYSTEM_SECONDS. Raises OSError if the file cannot be read.
    """
    version = time.monotonic() // SYSTEM_SECONDS if ca_file is None else os.stat(ca_file).st_mtime
    cached = _contexts.get(ca_file)
    if cached is None or cached[0] != version:
        cached = _contexts[ca_file] = version, ssl.create_default_context(cafile=ca_file)
    return cached[1]


@contextlib.contextmanager
def _closing_at(deadline: float, sock: socket.socket) -> Iterator[threading.Event]:
    """Shut the connection down at the deadline, because a socket's own timeout restarts with every byte.

    Yields an event that is set at the deadline.
    """
    expired = threading.Event()
    copy = sock.dup()  # wrap_socket() detaches the original socket from its descriptor

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
    connection.response_class = _FinalResponse
    connection.sock = sock
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    # The receiver may have answered and hung up before it has read the whole body: its answer counts.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request("POST", target, body, {**headers, "Connection": "close"})
    response = connection.getresponse()
    if expired.is_set():  # http.client accepts headers that were cut off
        raise TimeoutError
    text = b""
    with contextlib.suppress(OSError, http.client.HTTPException):  # the status counts, however the body ends
        text = response.read(MAX_RESPONSE_BYTES)
    return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, text)


class _FinalResponse(http.client.HTTPResponse):
    """The response after interim ones such as 103 (Early Hints). HTTPResponse itself skips only 100."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        while 101 < status < 200:
            http.client.parse_headers(self.fp)
            version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, status, reason
