"""The tables of the pipeline, each column with its unit. Tested against the Django models, so that neither drifts."""

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def _table(*columns: tuple[str, DataType, bool]) -> StructType:
    """Columns by name, type, and whether they may be null."""
    return StructType([StructField(name, kind, nullable) for name, kind, nullable in columns])


# A job as the operational table has it. Times are instants (UTC), kept to the millisecond.
JOBS = _table(
    ("id", LongType(), False),
    ("topic", StringType(), False),
    ("key", StringType(), False),
    ("state", ShortType(), False),  # states.State; `ready` is never stored
    ("due_at", TimestampType(), False),
    ("ttr_ms", LongType(), False),
    ("attempt", IntegerType(), False),
    ("failures", IntegerType(), False),
    ("body", StringType(), False),  # JSON
    ("created_at", TimestampType(), False),
    ("reserved_at", TimestampType(), True),
    ("lease_until", TimestampType(), True),
    ("ended_at", TimestampType(), True),  # null: live
    ("died_at", TimestampType(), True),
    ("worker", StringType(), False),
    ("error", StringType(), False),
)

# What happened to a job, one row per outcome or change.
EVENTS = _table(
    ("id", LongType(), False),
    ("job_id", LongType(), False),
    ("outcome", StringType(), False),  # states.Outcome
    ("attempt", IntegerType(), False),
    ("due_ms", LongType(), False),  # ms since 1970, as all *_ms here that are not a length of time
    ("reserved_ms", LongType(), True),  # null: no attempt began
    ("done_ms", LongType(), False),
    ("next_due_ms", LongType(), True),
    ("worker", StringType(), False),
    ("actor", StringType(), False),
    ("error", StringType(), False),
    ("reason", StringType(), False),
)

# What happened to a topic in an hour.
TOPIC_STATS = _table(
    ("topic", StringType(), False),
    ("hour_at", TimestampType(), False),  # the hour's beginning
    ("happened", LongType(), False),  # events
    ("finished", LongType(), False),
    ("retried", LongType(), False),  # attempts that failed or outlived their TTR, and are made again
    ("died", LongType(), False),
    ("cancelled", LongType(), False),
    ("snoozed", LongType(), False),
    ("begun", LongType(), False),  # first attempts: those tell how late a job was
    ("late_p50_ms", LongType(), True),  # a length of time, of first attempts; null: none began
    ("late_p95_ms", LongType(), True),
    ("late_p99_ms", LongType(), True),
    ("late_worst_ms", LongType(), True),
)

# What happened to a topic in a minute: the same, and how it is counted up, batch by batch.
MINUTES = StructType([
    TOPIC_STATS["topic"], StructField("minute_at", TimestampType(), False), *TOPIC_STATS.fields[2:]
])  # fmt: skip
COUNTS = _table(
    ("topic", StringType(), False),
    ("minute_ms", LongType(), False),  # the minute's beginning
    ("outcome", StringType(), False),
    ("late_ms", LongType(), True),  # a length of time, cut to three digits; null: no first attempt
    ("number", LongType(), False),  # events
    ("worst_ms", LongType(), True),  # the longest of them, uncut
)

# How late first attempts were, cut to two digits, and how many: what percentiles of any span can be made of.
LATE = ArrayType(_table(("ms", LongType(), False), ("number", LongType(), False)), containsNull=False)
HOURS = StructType([*TOPIC_STATS, StructField("late", LATE, False)])

# What is going to fall due.
DUE = _table(
    ("topic", StringType(), False),
    ("minute_at", TimestampType(), False),  # the minute's beginning
    ("due", LongType(), False),  # jobs
    ("overdue", LongType(), False),  # jobs; in the first minute
)

# Beside a job's own columns in the archive: what its row must still look like to be pruned, and where it lies.
ARCHIVED_JOBS = StructType([*JOBS, StructField("last_event_id", LongType(), False)])  # 0: it has none
ARCHIVED_AT = StructField("ended_on", DateType(), False)  # the day of ended_at, in UTC
