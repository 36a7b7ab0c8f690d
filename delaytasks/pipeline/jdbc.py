"""Reading through Spark's own JDBC source, where a site has PostgreSQL's driver and would rather use that.

The same relations in the same ranges of ids, each range in a transaction that sees the run's snapshot. Only PostgreSQL,
and only by TCP: the driver knows no unix sockets, and not all keywords of libpq.
"""

import json
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from .database import Database
from .relations import Relation
from .snapshot import Snapshot, entering

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FETCHED = 5_000  # rows that a reader has at once; without a number the driver would hold all of a range
PORT = "5432"
KEYWORDS = {  # of libpq -> what the driver calls them
    "sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey",
    "connect_timeout": "connectTimeout", "gssencmode": "gssEncMode", "options": "options",
}  # fmt: skip


class Reading(NamedTuple):
    """What Spark's JDBC source is told. predicates: one for each range."""

    url: str
    table: str
    predicates: list[str]
    properties: dict[str, str]


def problem(database: Database) -> str:
    """Why this database cannot be read so, as a sentence; empty if it can."""
    if database.vendor != "postgresql":
        return f"JDBC is for PostgreSQL here, not for {database.vendor}: leave --jdbc-driver out."
    if not database.host or database.host.startswith("/"):
        return (
            f"JDBC reaches PostgreSQL by TCP, and {database} is named by "
            f"{'the unix socket in ' + database.host if database.host else 'no host'}: give it a host, or leave "
            "--jdbc-driver out."
        )
    unknown = sorted(json.loads(database.libpq or "{}").keys() - KEYWORDS.keys())
    return f"PostgreSQL's JDBC driver knows no {', '.join(unknown)}: leave --jdbc-driver out." if unknown else ""


def read(
    spark: "SparkSession", snapshot: Snapshot, relation: Relation, schema: "StructType", step: int, most: int
) -> "DataFrame":
    """The schema's columns of a relation. step: ids of one range, of which there are at most `most`."""
    from pyspark.sql import functions as F

    # Or instants in filters would be written in the zone of whichever machine the driver runs on.
    spark.conf.set("spark.sql.datetime.java8API.enabled", "true")
    ((low, high),) = snapshot.ask(relation.ends)
    told = reading(snapshot, relation, schema.names, ranges(low, high, step, most))
    found = spark.read.jdbc(told.url, told.table, predicates=told.predicates, properties=told.properties)
    return found.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in schema))


def ranges(low: int | None, high: int | None, step: int, most: int) -> list[tuple[int, int]]:
    """From and up to, not including; one that is empty where there are no ids."""
    if low is None or high is None:
        return [(0, 0)]
    step = max(step, -(-(high - low + 1) // most))
    return [(start, min(start + step, high + 1)) for start in range(low, high + 1, step)]


def reading(snapshot: Snapshot, relation: Relation, columns: list[str], parts: list[tuple[int, int]]) -> Reading:
    """Ranges are told apart by columns beside those that are wanted; Spark asks for what is used and no more."""
    database = snapshot.database
    given = [f'{_given(relation, name)} AS "{name}"' for name in columns]
    limits = [f"range_{n}" for n in range(len(relation.ranges))]
    given += [f"{sql} AS {name}" for sql, name in zip(relation.ranges, limits, strict=True)]
    return Reading(
        f"jdbc:postgresql://{database.host}:{database.port or PORT}/{quote(database.name, safe='')}",
        f"(SELECT {', '.join(given)} FROM {relation.origin}) AS part",
        [" AND ".join(f"{each} >= {low} AND {each} < {high}" for each in limits) for low, high in parts],
        _properties(snapshot),
    )


def _given(relation: Relation, name: str) -> str:
    return f"CAST({relation.sql(name)} AS text)" if name == "body" else relation.sql(name)


def _properties(snapshot: Snapshot) -> dict[str, str]:
    """A fetch size opens a transaction, and what is said first in it is what the snapshot is entered with.

    Spark writes an instant into a filter without its zone: in the session's, which is UTC.
    """
    database = snapshot.database
    about = {"driver": database.jdbc, "user": database.user, "password": database.password}
    keywords = {KEYWORDS[name]: value for name, value in json.loads(database.libpq or "{}").items()}
    return {name: value for name, value in about.items() if value} | keywords | {
        "ApplicationName": "delaytasks pipeline", "fetchsize": str(FETCHED),
        "sessionInitStatement": "; ".join([*entering(snapshot.name), "SET TIME ZONE 'UTC'"]),
    }  # fmt: skip
