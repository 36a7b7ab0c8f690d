"""A Spark session as the pipeline needs it, on a laptop or on a cluster."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from . import java, package, sources

# What the code relies on, wherever it runs. A site's own options come on top, but not over these.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # without it a reader that takes filters is an error
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # a topic may be called 2030
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
LOCAL = {  # for local[*]: nothing listens beyond this machine
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "65536",  # topics times hours are more than its 128
}


@contextlib.contextmanager
def session(name: str, *, master: str = "local[*]", options: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session with the pipeline's data sources registered; it ends with the block.

    master    local[*], spark://..., yarn, k8s://..., or sc://host:port for Spark Connect
    options   Spark options of the site

    Raises JavaMissing where this process would have to start a Java and there is none.
    """
    builder = SparkSession.builder.appName(name)
    if master.startswith("sc://"):
        builder = builder.remote(master)
    else:
        _prepare_process(master)
        builder = builder.master(master)
    local = LOCAL if master.startswith("local") else {}
    for key, value in {**local, **(options or {}), **NEEDED}.items():
        builder = builder.config(key, value)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each connection that it closes
    spark = builder.getOrCreate()
    try:
        with tempfile.TemporaryDirectory(prefix="delaytasks-package-") as folder:
            if not master.startswith("local"):  # readers run on the executors: they get this package, and no more
                spark.addArtifacts(str(package.zipped(Path(folder))), pyfile=True)
            sources.register(spark)
            yield spark
    finally:
        spark.stop()


def _prepare_process(master: str) -> None:
    """What the Java and the Python workers that this process starts take from its environment."""
    os.environ["JAVA_HOME"] = java.home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # A data source is planned in a Python beside the driver, which must find this package: no zip gets there.
    paths = [str(package.ROOT.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
