"""Serve: keep one Spark driver with a Spark Connect server, so that several runs pay its start once.

The server is a plugin of the driver. So it has the settings of a run, and ends with this process, however that ends.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from ..config import BadSettings
from ..sources.database import Database
from ..spark.connect import PREFIX
from ..spark.progress import report_progress
from ..spark.shutdown import StopCondition, stop_signals
from ..tables.lake import Lake

PLUGIN, PLUGINS = "org.apache.spark.sql.connect.SparkConnectPlugin", "spark.plugins"
VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # its value is the token that Spark's server and its client read
CHECK_SECONDS = 1.0


def options(site: Mapping[str, str], *, master: str, port: int) -> dict[str, str]:
    """Return the site's Spark options with those of the server, which listens on this machine only.

    Raises BadSettings without a token: whoever reaches the port runs code as this user.
    """
    if master.startswith(PREFIX):
        raise BadSettings(f"{master} is a Spark Connect server already: serve starts one. Use local[*] or a cluster.")
    if not os.environ.get(VARIABLE):
        raise BadSettings(
            f"Set the environment variable {VARIABLE}, here and for the runs: without it every user of this machine "
            "could run code as you."
        )
    plugins = ",".join(filter(None, [site.get(PLUGINS), PLUGIN]))
    bound = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    return {**site, **bound, PLUGINS: plugins}


def run(spark: SparkSession, database: Database, lake: Lake, *, port: int, parent: int | None = None) -> dict[str, Any]:
    """Wait until SIGTERM, Ctrl-C or the end of the parent process. Return {"seconds"}.

    port     where the server listens
    parent   process id; None: no parent is watched
    """
    began = time.monotonic()
    with stop_signals() as stop:
        stopped = StopCondition(stop, lambda: None, parent, None)
        report_progress(f"Spark Connect server for --master {PREFIX}localhost:{port}; Ctrl-C ends it")
        while not stopped():
            stop.wait(CHECK_SECONDS)
    return {"seconds": round(time.monotonic() - began, 1)}
