"""Serve: keep a Spark Connect server running, so that several runs share one start of Spark.

The server is a plugin of this process's Spark driver. So it has the same settings as a run, and it ends with this
process, even if the process is killed.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ..config import BadSettings, without_parameters
from ..sources.database import Database
from ..spark.connect import PREFIX, ServerUnavailable
from ..spark.progress import report_progress
from ..spark.shutdown import StopCondition, stop_signals
from ..tables.lake import Lake

PLUGIN, PLUGINS = "org.apache.spark.sql.connect.SparkConnectPlugin", "spark.plugins"
VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # environment variable from which Spark's server and client read a token
CHECK_SECONDS = 1.0


def options(site: Mapping[str, str], *, master: str, port: int) -> dict[str, str]:
    """Return the site's Spark options with those of the server, which listens on this machine only.

    port   TCP port of the server

    Raises BadSettings if `master` is itself a Spark Connect server, or if there is no token: without one, every user
    of this machine could run code as this user.
    """
    if master.startswith(PREFIX):
        raise BadSettings(
            f"{without_parameters(master)} is already a Spark Connect server, and serve starts its own. Use local[*] "
            "or a cluster."
        )
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

    port     TCP port of the server, for the message
    parent   process id; None: no parent is watched

    Raises ServerUnavailable if Spark ends before: its Java was killed, or the cluster has removed the application.
    """
    began = time.monotonic()
    with stop_signals() as stop:
        stopped = StopCondition(stop, lambda: None, parent, None)
        report_progress(f"Spark Connect server for --master {PREFIX}localhost:{port}; Ctrl-C ends it")
        while not stopped():
            stop.wait(CHECK_SECONDS)
            if not stop.is_set() and _has_ended(spark):
                raise ServerUnavailable(
                    "Spark has ended: its Java process was killed, for example for want of memory, or the cluster has "
                    "removed the application. Start serve again."
                )
    return {"seconds": round(time.monotonic() - began, 1)}


def _has_ended(spark: SparkSession) -> bool:
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, OSError):
        return True
