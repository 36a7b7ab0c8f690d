"""A Spark session as the pipeline needs it, on a laptop or on a cluster."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from . import connect, java, package, sources

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
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "65536",  # topics times hours are more than its 128
}
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit tells its Python by it where its Java is


@contextlib.contextmanager
def session(name: str, *, master: str = "local[*]", options: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session with the pipeline's data sources registered; it ends with the block.

    master    local[*], spark://..., yarn, k8s://..., or sc://host:port for Spark Connect
    options   Spark options of the site

    Raises JavaMissing where this process would have to start a Java and there is none, and ServerAway.
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
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each connection that it closes
    with tempfile.TemporaryDirectory(prefix="delaytasks-session-") as folder:
        # Spark makes the folder of its own tables, of which there are none, where it was started.
        own = {"spark.sql.warehouse.dir": f"file://{folder}/warehouse"} if master.startswith("local") else {}
        for key, value in {**own, **chosen(master, options or {}), **NEEDED}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            # Readers run on the executors: they get this package, and no more. spark-submit has sent it already.
            if not (submitted or master.startswith("local")):
                spark.addArtifacts(str(package.zipped(Path(folder))), pyfile=True)
            sources.register(spark)
            yield spark
        finally:
            spark.stop()


def chosen(master: str, options: Mapping[str, str]) -> dict[str, str]:
    """Spark options of the site, with those of a laptop below them where the master is one."""
    return {**(LOCAL if master.startswith("local") else {}), **options}


def environment(master: str) -> dict[str, str]:
    """What the Java that is started here, and Python workers, take from their environment. Raises JavaMissing."""
    # A data source is planned in a Python beside the driver, which must find this package: no zip gets there.
    paths = [str(package.ROOT.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    kept = {name: os.environ.get(name, value) for name, value in wanted.items()}
    return kept | {"JAVA_HOME": java.home(), "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
