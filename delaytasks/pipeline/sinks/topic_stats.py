"""Write the report's hourly statistics to TopicStat in small transactions. Writing them again changes nothing."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .. import schemas
from ..sources.database import Database

BATCH_ROWS = 500  # rows of a transaction
KEY = ("topic", "hour_at")
UPSERT = """
    INSERT INTO delaytasks_topicstat ({columns}) VALUES ({placeholders})
    ON CONFLICT (topic, hour_at) DO UPDATE SET {sets}"""


def upsert_stats(database: Database, hours: DataFrame) -> int:
    """Insert or update the rows of `hours` in TopicStat. Return their number.

    hours   has the columns of schemas.TOPIC_STATS. Rows of other hours stay unchanged
    """
    names = schemas.TOPIC_STATS.names
    sql = UPSERT.format(
        columns=", ".join(names),
        placeholders=", ".join([database.placeholder] * len(names)),
        sets=", ".join(f"{name} = excluded.{name}" for name in names if name not in KEY),
    )
    rows = hours.orderBy(*KEY).withColumn("hour_at", F.unix_millis("hour_at")).select(*names)
    written = 0
    with database.connect() as connection:  # one for all batches: connecting takes as long as a batch
        for batch in _batches(rows.toLocalIterator(), BATCH_ROWS):
            connection.cursor().executemany(sql, [_to_values(row, database.vendor) for row in batch])
            connection.commit()
            written += len(batch)
    return written


def _to_values(row: Any, vendor: str) -> tuple[Any, ...]:
    """Return the row's values as Django stores them. In SQLite these are UTC texts for times."""
    hour_at = datetime.fromtimestamp(row.hour_at / 1000, UTC)
    hour_value = str(hour_at.replace(tzinfo=None)) if vendor == "sqlite" else hour_at
    return tuple(hour_value if name == "hour_at" else row[name] for name in row.__fields__)


def _batches(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch
