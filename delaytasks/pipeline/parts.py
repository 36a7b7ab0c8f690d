"""The files of a stream's parts, as Spark writes and reads them."""

from pyspark.sql import DataFrame, SparkSession

from . import schemas
from .lake import Lake
from .relations import RELATIONS

EVENTS = RELATIONS["events"].columns
WRITING = {"compression": "zstd"}


def write_events(lake: Lake, folder: str, events: DataFrame, *, more: bool = False) -> None:
    """more: beside those that are in it."""
    mode = "append" if more else "errorifexists"
    events.write.options(**WRITING).mode(mode).parquet(lake.uri(f"{folder}/events"))


def write_counts(lake: Lake, folder: str, counts: DataFrame) -> None:
    counts.coalesce(1).write.options(**WRITING).parquet(lake.uri(f"{folder}/minutes"))


def read_events(spark: SparkSession, lake: Lake, *folders: str) -> DataFrame:
    """relations.RELATIONS["events"] of these parts."""
    return spark.read.schema(EVENTS).parquet(*[lake.uri(f"{folder}/events") for folder in folders])


def read_counts(spark: SparkSession, lake: Lake, *folders: str) -> DataFrame:
    """schemas.COUNTS of these parts: what steps.by_minute() makes minutes of."""
    return spark.read.schema(schemas.COUNTS).parquet(*[lake.uri(f"{folder}/minutes") for folder in folders])
