"""Parquet files of the stream's parts."""

from pyspark.sql import DataFrame, SparkSession

from .. import schemas
from ..sources.relations import RELATIONS
from . import row_counts
from .lake import Lake

EVENTS = RELATIONS["events"].columns
WRITE_OPTIONS = {"compression": "zstd"}


def write_events(lake: Lake, folder: str, events: DataFrame, *, append: bool = False) -> None:
    """Write events to the folder of a part. append: add them to the events that the folder already has."""
    mode = "append" if append else row_counts.NEW
    row_counts.write(events, lake, f"{folder}/events", mode=mode, options=WRITE_OPTIONS)


def write_counts(lake: Lake, folder: str, counts: DataFrame) -> None:
    row_counts.write(counts.coalesce(1), lake, f"{folder}/minutes", options=WRITE_OPTIONS)


def read_events(spark: SparkSession, lake: Lake, *folders: str) -> DataFrame:
    """Return the events of the parts in these folders, with the columns EVENTS."""
    return spark.read.schema(EVENTS).parquet(*[lake.uri(f"{folder}/events") for folder in folders])


def read_counts(spark: SparkSession, lake: Lake, *folders: str) -> DataFrame:
    """Return the counts of the parts in these folders, with the columns schemas.COUNTS, for lateness.by_minute()."""
    return spark.read.schema(schemas.COUNTS).parquet(*[lake.uri(f"{folder}/minutes") for folder in folders])
