"""Check that a Spark Connect server answers before connecting, because Spark's client would retry for minutes."""

import importlib.util
import socket
from urllib.parse import urlsplit

PREFIX = "sc://"
PORT = 15002
WAIT_SECONDS = 10


class ServerUnavailable(Exception):
    """The Spark Connect server does not answer, or the Spark Connect client is not installed."""


def check(master: str) -> None:
    """Check that the server of sc://host:port/;... accepts connections. Raises ServerUnavailable.

    The exception's message never contains the parameters of the address, such as a token.
    """
    if importlib.util.find_spec("grpc") is None:
        raise ServerUnavailable('Spark Connect needs an extra package: pip install "pyspark[connect]".')
    try:
        found = urlsplit(master)
        address = (found.hostname or "", found.port or PORT)
    except ValueError as error:
        raise ServerUnavailable(f"The Spark Connect master must be {PREFIX}host:port: {error}.") from error
    try:
        socket.create_connection(address, WAIT_SECONDS).close()
    except OSError as error:
        raise ServerUnavailable(
            f"No Spark Connect server answers at {address[0]}:{address[1]}: {error.strerror or error}."
        ) from error
