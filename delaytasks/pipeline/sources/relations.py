"""Relations that Spark can read from the database in parallel, each by ranges of an id."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql.types import (
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .. import schemas


@dataclass(frozen=True)
class Relation:
    """columns     columns with their types; the SQL of a column is `<alias>.<name>`, or its value in `expressions`
    source       FROM clause, with `alias` as the alias of a table in it
    bounds       query for the least and greatest value of the first of `ranges`
    key          name of the column whose values are divided into ranges
    ranges       SQL expressions to which the limits of a range are applied
    """

    columns: StructType
    alias: str
    source: str
    bounds: str
    key: str
    ranges: tuple[str, ...]
    expressions: Mapping[str, str] = field(default_factory=dict)

    def sql(self, column: str) -> str:
        return self.expressions.get(column, f'{self.alias}."{column}"')

    def select(self, names: list[str] | None) -> StructType:
        """Return the schema of these columns, in this order; None: all columns. Raises ValueError if one is unknown."""
        unknown = sorted(set(names or ()) - set(self.columns.names))
        if unknown:
            raise ValueError(f"Unknown column {', '.join(unknown)}; known are {', '.join(self.columns.names)}.")
        return StructType([self.columns[name] for name in names]) if names else self.columns


# A job with declared_due must stay in the database: a declared timeout may need it as the record that this due time has
# been handled. Null as its ended_at keeps the job out of the archive.
_ENDED_AT = "CASE WHEN j.declared_due IS NULL THEN j.ended_at END"
# The end of a live job's lease, or that of its extension in models.Touch, as in db/lookups.py.
_LEASE_UNTIL = """coalesce((SELECT touch.lease_until FROM delaytasks_touch AS touch WHERE j.ended_at IS NULL
    AND touch.job_id = j.id AND touch.attempt = j.attempt AND touch.lease_until > j.lease_until), j.lease_until)"""
RELATIONS = {
    "jobs": Relation(
        schemas.JOBS, "j", "delaytasks_job AS j", "SELECT min(id), max(id) FROM delaytasks_job AS j", "id", ("j.id",),
        {"lease_until": _LEASE_UNTIL},
    ),
    # Jobs with the id of their last event. With max(id) instead of max(id + 0), PostgreSQL would scan the index of all
    # events backwards.
    "ended": Relation(
        schemas.ENDED_JOBS, "j", "delaytasks_job AS j", "SELECT min(id), max(id) FROM delaytasks_job AS j",
        "id", ("j.id",),
        {"last_event_id": "(SELECT coalesce(max(id + 0), 0) FROM delaytasks_jobevent WHERE job_id = j.id)",
         "ended_at": _ENDED_AT},
    ),
    # Events with the topic of their job, by ranges of event ids. The topic is null if the job does not exist any more.
    "events": Relation(
        StructType([*schemas.EVENTS, StructField("topic", StringType(), True)]),
        "e", "delaytasks_jobevent AS e", "SELECT min(id), max(id) FROM delaytasks_jobevent AS e", "id", ("e.id",),
        {"topic": "(SELECT topic FROM delaytasks_job WHERE id = e.job_id)"},
    ),
    # Events with columns of their job, by ranges of job ids. The limits of a range apply to both tables, so that each
    # table is read by its own index.
    "job_events": Relation(
        StructType([
            *schemas.EVENTS, StructField("topic", StringType(), False), StructField("ended_at", TimestampType(), True),
            StructField("state", ShortType(), False), StructField("range_id", LongType(), False),
        ]),
        "e", "delaytasks_job AS j JOIN delaytasks_jobevent AS e ON e.job_id = j.id",
        "SELECT min(id), max(id) FROM delaytasks_job AS j", "range_id", ("j.id", "e.job_id"),
        {"topic": "j.topic", "ended_at": _ENDED_AT, "state": "j.state", "range_id": "j.id"},
    ),
}  # fmt: skip
_JOB_EVENTS = RELATIONS["job_events"]
# "job_events" with the job's key, for the audit. Of the errors it needs the codes of skipped jobs, and no tracebacks.
RELATIONS["job_events_with_key"] = replace(
    _JOB_EVENTS,
    columns=StructType([*_JOB_EVENTS.columns, StructField("key", StringType(), False)]),
    expressions={
        **_JOB_EVENTS.expressions,
        "key": "j.key",
        "error": "CASE WHEN e.outcome = 'skipped' THEN e.error ELSE '' END",
    },
)


def quoted(table: str) -> str:
    """Return the SQL of a table's name, optionally with its schema."""
    return ".".join(f'"{part}"' for part in table.split("."))


def finite(time: str) -> str:
    """Return PostgreSQL's expression for a date or timestamp, in which the years 9999 and 1 replace infinity.

    Spark has no infinite times, and the driver would return one as a time in the past.
    """
    return (
        f"CASE {time} WHEN 'infinity' THEN '9999-12-31 23:59:59.999999Z' WHEN '-infinity' THEN '0001-01-01Z' "
        f"ELSE {time} END"
    )


def table_relation(table: str, columns: StructType, vendor: str) -> Relation:
    """Return the relation of any table with an integer `id`.

    table     name of the table, optionally with its schema
    columns   columns to read. Strings are cast to text in SQL, so that a column of any type can be read as a string.
              Decimals and doubles are cast to text, too, because the two drivers return them in different types
    """
    casts = {
        each.name: f'CAST(t."{each.name}" AS text)'
        for each in columns if isinstance(each.dataType, StringType | DecimalType | DoubleType)
    }  # fmt: skip
    if vendor == "postgresql":
        times = [each.name for each in columns if isinstance(each.dataType, TimestampType | DateType)]
        casts |= {name: finite(f't."{name}"') for name in times}
    source = f"{quoted(table)} AS t"
    return Relation(columns, "t", source, f"SELECT min(id), max(id) FROM {source}", "id", ("t.id",), casts)
