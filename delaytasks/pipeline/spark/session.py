"""Create the Spark session of the pipeline, on one machine or on a cluster."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from ..sources import arrow
from . import class_archive, connect, java, package, python

# Options that the code depends on. They override the site's options.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # without it, Spark rejects a reader that has pushFilters()
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # otherwise the topic "2030" would be a number
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.legacy.parquet.nanosAsLong": "true",  # without it, Spark refuses timestamps in nanoseconds
    "spark.sql.files.ignoreMissingFiles": "false",  # a file that an executor does not see is an error
    "spark.sql.files.ignoreCorruptFiles": "false",
}
PARTITIONS = "spark.sql.shuffle.partitions"
SIZES = {  # defaults for every master
    PARTITIONS: "16",
    # The default, 128, is less than the number of groups, which is topics * hours.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "65536",
}
LOCAL = {  # for local[*]: listen on this machine only
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.catalogImplementation": "in-memory",
    **SIZES,
}
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit: the port of its Java process


@contextlib.contextmanager
def session(name: str, *, master: str = "local[*]", options: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield a session in which the pipeline's data source is registered. Stop the session at the end of the block.

    master    local[*], spark://..., yarn, k8s://..., or sc://host:port for Spark Connect
    options   the site's Spark options

    Raises ServerUnavailable if the Spark Connect server does not answer, and JavaMissing if this process has to start
    Java and finds none.
    """
    builder = SparkSession.builder.appName(name)
    submitted = SUBMITTED in os.environ
    if master.startswith(connect.PREFIX):
        connect.check(master)
        builder = builder.remote(master)
    else:
        if not submitted:
            os.environ.update(environment(master))
        builder = builder.master(master)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # py4j logs each closed connection
    with tempfile.TemporaryDirectory(prefix="delaytasks-session-") as folder:
        # Spark creates the warehouse folder, which stays empty, in the working directory.
        warehouse = {"spark.sql.warehouse.dir": f"file://{folder}/warehouse"} if master.startswith("local") else {}
        for key, value in {**warehouse, **spark_options(master, options or {}), **NEEDED}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        if master.startswith(connect.PREFIX):
            connect.limit_retries(spark)
        try:
            # Executors run the readers, so they need this package. With spark-submit they already have it.
            if not (submitted or master.startswith("local")):
                spark.addArtifacts(str(package.zipped(Path(folder))), pyfile=True)
            arrow.register(spark)
            yield spark
        finally:
            with contextlib.suppress(Py4JNetworkError, ConnectionError):  # Java has ended already
                spark.stop()


def set_sizes(spark: Any, options: Mapping[str, str]) -> None:
    """Set the options SIZES, with two shuffle partitions per core if that is more, and the application's `options`.

    Call this after the executors have registered. Options that the site, the cluster or the Spark Connect server has
    set stay. With Spark Connect the number of cores is unknown.
    """
    cores = spark.sparkContext.defaultParallelism if isinstance(spark, SparkSession) else 0
    partitions = max(int(SIZES[PARTITIONS]), 2 * cores)
    for name, value in {**SIZES, PARTITIONS: str(partitions), **options}.items():
        spark.conf.set(name, spark.conf.get(name, value))


def spark_options(master: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the site's Spark options. Add the defaults LOCAL, or let executors of a cluster use the class archive."""
    if master.startswith("local"):
        return {**LOCAL, **options}
    archive = class_archive.options() if not master.startswith(connect.PREFIX) else ""
    return {**({f"spark.executorEnv.{class_archive.VARIABLE}": archive} if archive else {}), **options}


def environment(master: str) -> dict[str, str]:
    """Return the environment variables of the Java process and the Python workers. Raises JavaMissing."""
    # Spark plans a Python data source in a separate process on the driver's host. This process does not get the zip of
    # package.py, so it must find delaytasks through PYTHONPATH.
    paths = [str(package.ROOT.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        variables |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python.command()}
    kept = {name: os.environ.get(name, value) for name, value in variables.items()}
    kept |= java.environment() | class_archive.environment()
    return kept | {"JAVA_HOME": java.home(), "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
