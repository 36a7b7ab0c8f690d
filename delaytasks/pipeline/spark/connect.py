"""Spark Connect: check that a server answers before connecting, and limit how long the client repeats a request.

Spark's client would repeat each request for ten minutes.
"""

import importlib.util
from typing import Any

from ..config import without_parameters

PREFIX = "sc://"
WAIT_SECONDS = 10.0
RETRIES = 5  # of a request that has failed; the waits between them grow to 13 s, and are 17 s in all


class ServerUnavailable(Exception):
    """The Spark Connect server does not answer, or the Spark Connect client is not installed."""


def check(master: str) -> None:
    """Check that the server of sc://host:port/;... answers. Raises ServerUnavailable.

    The exception's message never contains the parameters of the address, such as a token.
    """
    if importlib.util.find_spec("grpc") is None:
        raise ServerUnavailable('Spark Connect needs the package grpcio: pip install "delaytasks[pipeline]".')
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    address = without_parameters(master)
    try:
        builder = DefaultChannelBuilder(master)
    except (PySparkException, ValueError) as error:
        raise ServerUnavailable(f"The Spark Connect master must be {PREFIX}host:port, not {address!r}.") from error
    with builder.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=WAIT_SECONDS)
        except grpc.FutureTimeoutError as error:
            encrypted = " with encryption, which Spark's client uses for a token and any host but localhost"
            raise ServerUnavailable(
                f"No Spark Connect server answers at {address}{encrypted if builder.secure else ''}."
            ) from error


def limit_retries(spark: Any) -> None:
    """Let the client of a Spark Connect session give up after RETRIES repetitions of a request."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES)])
