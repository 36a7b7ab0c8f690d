"""Write the report's hourly statistics to TopicStat in small transactions. Writing them again changes nothing."""

from collections.abc import Iterable
from typing import Any

import pyarrow
from pyspark.sql.types import StringType, TimestampType

from .. import schemas
from ..sources.database import Database

BATCH_ROWS = 500  # rows per transaction
KEY = ("topic", "hour_at")
UPSERT = """
    INSERT INTO delaytasks_topicstat ({columns}) {rows}
    ON CONFLICT (topic, hour_at) DO UPDATE SET {sets}"""


def upsert_stats(database: Database, hours: Iterable[pyarrow.Table]) -> int:
    """Insert or update the rows of `hours` in TopicStat. Return their number.

    hours   batches with the columns of schemas.TOPIC_STATS. Rows of other hours stay unchanged
    """
    written, sql = 0, _statement(database)
    with database.connect() as connection:  # one connection for all batches: connecting takes as long as a batch
        for batch in hours:
            for part in batch.select(schemas.TOPIC_STATS.names).to_batches(BATCH_ROWS):
                _write(connection, sql, part, database.vendor)
                connection.commit()
                written += len(part)
    return written


def _statement(database: Database) -> str:
    names = schemas.TOPIC_STATS.names
    kinds = {StringType: "text", TimestampType: "timestamptz"}
    # PostgreSQL gets one array for each column: one statement for each row would take five times as long.
    arrays = ", ".join(f"%s::{kinds.get(type(each.dataType), 'bigint')}[]" for each in schemas.TOPIC_STATS)
    values = f"VALUES ({', '.join('?' * len(names))})"
    rows = values if database.vendor == "sqlite" else f"SELECT * FROM unnest({arrays})"
    sets = ", ".join(f"{name} = excluded.{name}" for name in names if name not in KEY)
    return UPSERT.format(columns=", ".join(names), rows=rows, sets=sets)


def _write(connection: Any, sql: str, part: pyarrow.RecordBatch, vendor: str) -> None:
    columns = [column.to_pylist() for column in part.columns]
    if vendor == "sqlite":  # Django stores times as UTC texts there
        at = part.schema.names.index("hour_at")
        columns[at] = [str(hour.replace(tzinfo=None)) for hour in columns[at]]
        connection.executemany(sql, zip(*columns, strict=True))
    else:
        connection.execute(sql, columns)
