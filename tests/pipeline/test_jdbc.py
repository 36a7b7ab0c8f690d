"""Reading through a JDBC driver: what Spark's source is told. With a driver and a server it is tried by hand."""

from delaytasks.pipeline import jdbc
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.relations import RELATIONS
from delaytasks.pipeline.snapshot import Snapshot

SHOP = Database("postgresql", "the shop", host="db", user="me", password="hush", jdbc="org.postgresql.Driver",
                libpq='{"sslmode": "verify-full", "connect_timeout": "5"}')  # fmt: skip
TAKEN = Snapshot(SHOP, 0, 1, 2, "00000003-0000001B-1")


def told(relation: str = "stories", *columns: str) -> jdbc.Reading:
    return jdbc.reading(TAKEN, RELATIONS[relation], [*columns], jdbc.ranges(1, 5, 3, 100))


def test_each_range_limits_the_ids_of_both_tables_and_no_id_is_in_two() -> None:
    reading = told("stories", "outcome", "topic")

    assert reading.table == (
        '(SELECT e."outcome" AS "outcome", j.topic AS "topic", j.id AS range_0, e.job_id AS range_1 '
        "FROM delaytasks_job AS j JOIN delaytasks_jobevent AS e ON e.job_id = j.id) AS part"
    )
    assert reading.predicates == [
        "range_0 >= 1 AND range_0 < 4 AND range_1 >= 1 AND range_1 < 4",
        "range_0 >= 4 AND range_0 < 6 AND range_1 >= 4 AND range_1 < 6",
    ]


def test_every_range_is_read_from_the_runs_snapshot_in_bounded_memory() -> None:
    properties = told().properties

    assert properties["sessionInitStatement"] == (
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; "
        "SET TRANSACTION SNAPSHOT '00000003-0000001B-1'; SET TIME ZONE 'UTC'"
    )
    assert int(properties["fetchsize"]) == jdbc.FETCHED > 0, "0 would mean no transaction, and all rows at once"


def test_the_password_is_a_property_and_keywords_of_trust_get_their_names() -> None:
    reading = told("jobs", "body")

    assert 'CAST(j."body" AS text) AS "body"' in reading.table
    assert reading.url == "jdbc:postgresql://db:5432/the%20shop"
    assert [name for name, value in reading.properties.items() if "hush" in value] == ["password"]
    assert (reading.properties["sslmode"], reading.properties["connectTimeout"]) == ("verify-full", "5")
    assert "hush" not in reading.url + reading.table


def test_ranges_are_no_more_than_asked_for_and_one_where_there_is_nothing() -> None:
    assert jdbc.ranges(None, None, 3, 100) == [(0, 0)]
    assert jdbc.ranges(1, 1_000, 3, 10) == [(start, start + 100) for start in range(1, 1_000, 100)]
