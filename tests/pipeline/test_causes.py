"""What Spark fails of and its user can mend is told in a sentence, not in Java's words."""

from typing import Any

import pytest
from django.db import connection
from pyspark.errors import PySparkException

from delaytasks.pipeline import causes, sources
from delaytasks.pipeline.database import Database, NotAllowed
from delaytasks.pipeline.snapshot import Snapshot


@pytest.mark.only_on("postgresql")
def test_a_right_that_is_missing_is_named_wherever_it_was_missed(spark: Any, reader: Database) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"REVOKE SELECT ON delaytasks_jobevent FROM {reader.user}")
    assert sources.read(spark, Snapshot(reader, 0, 0, 0), "jobs").count() == 0
    with pytest.raises(PySparkException) as raised:
        sources.read(spark, Snapshot(reader, 0, 0, 0), "events").count()
    assert causes.told(raised.value)[1] == (
        "The database refuses the pipeline's user: permission denied for table delaytasks_jobevent. "
        "Nothing was published; GRANT SELECT on it and run this again."
    )
    wanted = f"user {reader.user}: permission denied for table delaytasks_job"
    with pytest.raises(NotAllowed, match=wanted), reader.connect() as connected:
        connected.execute("DELETE FROM delaytasks_job")


@pytest.mark.only_on("sqlite")
def test_a_jar_that_is_missing_is_asked_for(spark: Any) -> None:
    with pytest.raises(Exception, match="ClassNotFound") as raised:
        spark.read.jdbc("jdbc:none://db", "jobs", properties={"driver": "org.none.Driver"})
    assert causes.told(raised.value)[1] == (
        "Java has no class org.none.Driver: name the jar that has it by --conf spark.jars=/path/to.jar."
    )


def test_what_is_not_known_is_told_by_sparks_first_lines() -> None:
    said = "[A] first\n\tat org.Java\n" + "\n".join(f"line {n}" for n in range(40))
    assert causes.told(Exception(said))[1].splitlines() == ["[A] first", *(f"line {n}" for n in range(11))]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("pyspark: x\nadbc_driver_manager.OperationalError: IO: the end.\nat", "IO: the end"),
        ('ERROR: invalid snapshot identifier: "0003-1"', "invalid snapshot identifier"),
        ('ERROR: snapshot "0003-1" does not exist', 'snapshot "0003-1" does not exist'),
    ],
)
def test_a_database_that_went_away_is_told_whatever_noticed_it(said: str, why: str) -> None:
    assert causes.told(Exception(said)) == (
        "DatabaseAway",
        f"The database went away: {why}. Nothing was published; run it again when the database is back.",
    )
