"""A Redis behind a Sentinel that asks for passwords and, through a proxy, for TLS."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Self

import redis

from tests.support.servers import Server, ServerMissing, free_port, redis_binary, tail

SERVICE = "main"


class SentinelServer(Server):
    """A Sentinel that watches one master on loopback.

    password          the Sentinel's own password; "": none
    master_password   the master's password; "": none
    down_after_ms     how long the master may be silent until a replica takes over
    """

    name = "sentinel"

    def __init__(
        self, master_port: int, *, password: str = "", master_password: str = "", down_after_ms: int = 30_000
    ) -> None:
        super().__init__()
        self.port, self.password = free_port(), password
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} 1",
            f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}",
            *([f"sentinel auth-pass {SERVICE} {master_password}"] if master_password else []),
            *([f"requirepass {password}"] if password else []),
        ]
        self.config = self.directory / "sentinel.conf"
        self.config.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        self.spawn([redis_binary(), str(self.config), "--sentinel"])
        if not self.await_answer():
            raise ServerMissing(f"{redis_binary()} --sentinel does not start. Its log ends:\n{tail(self.log)}")

    def answers(self) -> bool:
        try:
            with redis.Redis(port=self.port, password=self.password or None, socket_timeout=5) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for 127.0.0.1. Return the paths of certificate and key. Raises ServerMissing."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ServerMissing("There is no openssl program: `apt-get install openssl`.")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return certificate, key


class TLSProxy:
    """Forwards connections to a server on loopback. Clients with and without TLS use the same port.

    A Sentinel hands out the address that it uses itself, so both must be able to use it.
    """

    def __init__(self, target_port: int, certificate: Path, key: Path) -> None:
        self._target_port = target_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.tls_connections = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.append(client)
        with contextlib.suppress(OSError):
            if client.recv(1, socket.MSG_PEEK) == b"\x16":  # the first byte of a TLS handshake
                client = self._context.wrap_socket(client, server_side=True)
                self._open.append(client)
                self.tls_connections += 1
            server = socket.create_connection(("127.0.0.1", self._target_port))
            self._open.append(server)
            threading.Thread(target=_copy, args=(server, client), daemon=True).start()
            _copy(client, server)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65_536):
            sink.sendall(piece)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
