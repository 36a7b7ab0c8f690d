"""Spark Connect: whether a server is there to talk to. Its client would try for minutes before it says that none is."""

import importlib.util
import socket
from urllib.parse import urlsplit

PREFIX = "sc://"
PORT = 15002
WAIT_SECONDS = 10


class ServerAway(Exception):
    """Nobody to talk to Spark Connect with, on this side or on the other."""


def check(master: str) -> None:
    """Do nothing if something listens where sc://host:port/;... says. Raises ServerAway, never with the token."""
    if importlib.util.find_spec("grpc") is None:
        raise ServerAway('Spark Connect needs more than the pipeline does: pip install "pyspark[connect]".')
    try:
        found = urlsplit(master)
        where = (found.hostname or "", found.port or PORT)
    except ValueError as error:
        raise ServerAway(f"{PREFIX}host:port was expected as the master: {error}.") from error
    try:
        socket.create_connection(where, WAIT_SECONDS).close()
    except OSError as error:
        raise ServerAway(
            f"No Spark Connect server answers at {where[0]}:{where[1]}: {error.strerror or error}."
        ) from error
