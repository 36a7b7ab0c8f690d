"""Schemas of the pipeline's tables, with the unit of each column. Tests compare them with the Django models."""

from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def _table(*columns: tuple[str, DataType, bool]) -> StructType:
    """Build a schema from (name, type, nullable) of each column."""
    return StructType([StructField(name, kind, nullable) for name, kind, nullable in columns])


# A row of the job table. Times are UTC, to the millisecond.
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
    ("ended_at", TimestampType(), True),  # null: the job is live
    ("died_at", TimestampType(), True),
    ("worker", StringType(), False),
    ("error", StringType(), False),  # text or an ErrorCode of delaytasks.outcomes; older rows: one of its FORMER_ERRORS
    ("subject_label", StringType(), True),  # the model of the job's subject; null: no subject
    ("subject_pk", StringType(), True),  # its primary key, as text
)

# A row of the event table: one outcome or change of a job.
EVENTS = _table(
    ("id", LongType(), False),
    ("job_id", LongType(), False),
    ("outcome", StringType(), False),  # states.Outcome
    ("attempt", IntegerType(), False),
    ("due_ms", LongType(), False),  # milliseconds since 1970, like every *_ms in this module that is not a duration
    ("reserved_ms", LongType(), True),  # null: no attempt began
    ("done_ms", LongType(), False),
    ("next_due_ms", LongType(), True),
    ("worker", StringType(), False),
    ("actor", StringType(), False),
    ("error", StringType(), False),  # as in JOBS
    ("reason", StringType(), False),
)

# Statistics of a topic in an hour.
TOPIC_STATS = _table(
    ("topic", StringType(), False),
    ("hour_at", TimestampType(), False),  # start of the hour
    ("happened", LongType(), False),  # number of events
    ("finished", LongType(), False),
    ("retried", LongType(), False),  # attempts that failed or exceeded their TTR and are retried
    ("died", LongType(), False),
    ("cancelled", LongType(), False),
    ("snoozed", LongType(), False),
    ("begun", LongType(), False),  # number of first attempts; lateness is measured on these
    ("late_p50_ms", LongType(), True),  # a duration; null: no first attempt
    ("late_p95_ms", LongType(), True),
    ("late_p99_ms", LongType(), True),
    ("late_worst_ms", LongType(), True),
)

# MINUTES: statistics of a topic in a minute. COUNTS: event counts of one batch, from which MINUTES are computed.
MINUTES = StructType([
    TOPIC_STATS["topic"], StructField("minute_at", TimestampType(), False), *TOPIC_STATS.fields[2:]
])  # fmt: skip
COUNTS = _table(
    ("topic", StringType(), False),
    ("minute_ms", LongType(), False),  # start of the minute
    ("outcome", StringType(), False),
    ("late_ms", LongType(), True),  # duration, rounded down to three digits; null: no first attempt
    ("number", LongType(), False),  # number of events
    ("worst_ms", LongType(), True),  # the longest lateness of these events, not rounded; null: no first attempt
)

# Histogram of durations, rounded down to two digits. The percentiles of a longer period can be computed from the
# histograms of its hours.
HISTOGRAM = ArrayType(_table(("ms", LongType(), False), ("number", LongType(), False)), containsNull=False)
HOURS = StructType([
    *TOPIC_STATS,
    StructField("late", HISTOGRAM, False),  # lateness of first attempts
    StructField("attempts", LongType(), True),  # number of attempts that ended, of any outcome
    StructField("run_total_ms", LongType(), True),  # sum of their run times, each from the reservation to the end
    StructField("run", HISTOGRAM, True),  # their run times
])  # fmt: skip
ADDED_HOURS = ("attempts", "run_total_ms", "run")  # columns that older reports' tables lack; null in their hours
REPORTED_HOURS = StructType([*HOURS, StructField("month", StringType(), False)])  # month: "2030-02", in UTC

# Jobs that will fall due, per topic and minute.
DUE = _table(
    ("topic", StringType(), False),
    ("minute_at", TimestampType(), False),  # start of the minute
    ("due", LongType(), False),  # number of jobs that are not overdue
    ("overdue", LongType(), False),  # number of overdue jobs, which are all counted in the first minute
)

# Rows of the archive's tables. last_event_id: the job's last event when it was archived; the job is pruned only if it
# has no later event. run: number of the archive run; null in files that `pipeline convert` took over.
_RUN = StructField("run", LongType(), True)
ENDED_JOBS = StructType([*JOBS, StructField("last_event_id", LongType(), False)])  # 0: no event
ARCHIVED_JOBS = StructType([*ENDED_JOBS, _RUN])
ARCHIVED_EVENTS = StructType([*EVENTS, JOBS["topic"], _RUN])

# Rows of the stream's tables. day: the UTC day of publication, such as "2030-02-01".
_DAY = StructField("day", StringType(), False)
STREAMED_EVENTS = StructType([*EVENTS, StructField("topic", StringType(), True), _DAY])  # null: the job is gone
STREAMED_COUNTS = StructType([*COUNTS, _DAY])
