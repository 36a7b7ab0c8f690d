"""What can be read of the database in parallel: each as a FROM, and the columns whose ranges are the parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql.types import (
    DecimalType,
    DoubleType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from . import schemas


@dataclass(frozen=True)
class Relation:
    """columns   each with its type; in SQL it is `<alias>.<name>` unless `elsewhere` says otherwise
    ranges       the expressions that are limited to a part's range; the ends are looked up for the first
    key          the column that such a range is of
    """

    columns: StructType
    alias: str
    origin: str
    ends: str
    key: str
    ranges: tuple[str, ...]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def sql(self, column: str) -> str:
        return self.elsewhere.get(column, f'{self.alias}."{column}"')

    def chosen(self, names: list[str] | None) -> StructType:
        """The schema of these columns, in this order. Raises ValueError for one that there is not."""
        unknown = sorted(set(names or ()) - set(self.columns.names))
        if unknown:
            raise ValueError(f"There is no column {', '.join(unknown)}; there are {', '.join(self.columns.names)}.")
        return StructType([self.columns[name] for name in names]) if names else self.columns


RELATIONS = {
    "jobs": Relation(
        schemas.JOBS, "j", "delaytasks_job AS j", "SELECT min(id), max(id) FROM delaytasks_job AS j", "id", ("j.id",)
    ),
    # The newest event as a sum, so that PostgreSQL does not look for it among everybody's, backwards.
    "ended": Relation(
        schemas.ARCHIVED_JOBS, "j", "delaytasks_job AS j", "SELECT min(id), max(id) FROM delaytasks_job AS j",
        "id", ("j.id",),
        {"last_event_id": "(SELECT coalesce(max(id + 0), 0) FROM delaytasks_jobevent WHERE job_id = j.id)"},
    ),
    # Events in the order in which they happened, with their job's topic; null where the job is gone.
    "events": Relation(
        StructType([*schemas.EVENTS, StructField("topic", StringType(), True)]),
        "e", "delaytasks_jobevent AS e", "SELECT min(id), max(id) FROM delaytasks_jobevent AS e", "id", ("e.id",),
        {"topic": "(SELECT topic FROM delaytasks_job WHERE id = e.job_id)"},
    ),
    # Jobs with their events, job by job. Both are limited to a range, so that each is read by its own index.
    "stories": Relation(
        StructType([
            *schemas.EVENTS, StructField("topic", StringType(), False), StructField("ended_at", TimestampType(), True),
            StructField("state", ShortType(), False), StructField("story_id", LongType(), False),
        ]),
        "e", "delaytasks_job AS j JOIN delaytasks_jobevent AS e ON e.job_id = j.id",
        "SELECT min(id), max(id) FROM delaytasks_job AS j", "story_id", ("j.id", "e.job_id"),
        {"topic": "j.topic", "ended_at": "j.ended_at", "state": "j.state", "story_id": "j.id"},
    ),
}  # fmt: skip
_STORIES = RELATIONS["stories"]
RELATIONS["keyed"] = replace(  # the same, with the job's key
    _STORIES,
    columns=StructType([*_STORIES.columns, StructField("key", StringType(), False)]),
    elsewhere={**_STORIES.elsewhere, "key": "j.key"},
)


def of_table(table: str, columns: StructType) -> Relation:
    """Any table with a whole-number `id`. table: a name, with its schema's if need be.

    Texts are cast, as any type can be read as one; and numbers of which the drivers disagree: both give them as texts.
    """
    named = ".".join(f'"{part}"' for part in table.split("."))
    cast = {
        each.name: f'CAST(t."{each.name}" AS text)'
        for each in columns if isinstance(each.dataType, StringType | DecimalType | DoubleType)
    }  # fmt: skip
    return Relation(columns, "t", f"{named} AS t", f"SELECT min(id), max(id) FROM {named} AS t", "id", ("t.id",), cast)
