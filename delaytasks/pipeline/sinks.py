"""Writes what was worked out back to the database: small, in batches, and the same again changes nothing."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from . import schemas
from .database import Database

BATCH = 500  # rows of one transaction
KEY = ("topic", "hour_at")
UPSERT = """
    INSERT INTO delaytasks_topicstat ({columns}) VALUES ({marks})
    ON CONFLICT (topic, hour_at) DO UPDATE SET {sets}"""


def upsert_stats(database: Database, hours: DataFrame) -> int:
    """How many rows of TopicStat now say what `hours` says. Needs schemas.TOPIC_STATS; other hours stay as they are."""
    names = schemas.TOPIC_STATS.names
    sql = UPSERT.format(
        columns=", ".join(names),
        marks=", ".join([database.mark] * len(names)),
        sets=", ".join(f"{name} = excluded.{name}" for name in names if name not in KEY),
    )
    rows = hours.orderBy(*KEY).withColumn("hour_at", F.unix_millis("hour_at")).select(*names)
    written = 0
    for batch in _batches(rows.toLocalIterator(), BATCH):
        with database.connect() as connection:
            cursor = connection.cursor()
            cursor.executemany(sql, [_stored(row, database.vendor) for row in batch])
        written += len(batch)
    return written


def _stored(row: Any, vendor: str) -> tuple[Any, ...]:
    """As Django stores it: SQLite has instants as text, in UTC."""
    hour_at = datetime.fromtimestamp(row.hour_at / 1000, UTC)
    at = str(hour_at.replace(tzinfo=None)) if vendor == "sqlite" else hour_at
    return tuple(at if name == "hour_at" else row[name] for name in row.__fields__)


def _batches(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    each = iter(rows)
    while batch := list(islice(each, size)):
        yield batch
