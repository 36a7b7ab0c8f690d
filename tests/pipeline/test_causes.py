"""What Spark fails of and its user can mend is told in a sentence, not in Java's words."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from pyspark.errors import PySparkException

from delaytasks.pipeline import run, sources
from delaytasks.pipeline.database import Database, NotAllowed
from delaytasks.pipeline.snapshot import Snapshot

READER = "delaytasks_reader"


@pytest.fixture
def limited(database: Database) -> Iterator[Database]:
    """A user who may read jobs, and nothing else."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {READER} LOGIN")
        cursor.execute(f"GRANT SELECT ON delaytasks_job TO {READER}")
    yield replace(database, user=READER, password="")
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {READER}")
        cursor.execute(f"DROP ROLE {READER}")


@pytest.mark.only_on("postgresql")
def test_a_right_that_is_missing_is_named_wherever_it_was_missed(spark: Any, limited: Database) -> None:
    assert sources.read(spark, Snapshot(limited, 0, 0, 0), "jobs").count() == 0
    with pytest.raises(PySparkException) as raised:
        sources.read(spark, Snapshot(limited, 0, 0, 0), "events").count()
    assert run.cause(str(raised.value)) == (
        "The database refuses the pipeline's user: permission denied for table delaytasks_jobevent. "
        "Nothing was published; GRANT SELECT on it and run this again."
    )
    wanted = f"user {READER}: permission denied for table delaytasks_job"
    with pytest.raises(NotAllowed, match=wanted), limited.connect() as reader:
        reader.execute("DELETE FROM delaytasks_job")


@pytest.mark.only_on("sqlite")
def test_a_jar_that_is_missing_is_asked_for(spark: Any) -> None:
    with pytest.raises(Exception, match="ClassNotFound") as raised:
        spark.read.jdbc("jdbc:none://db", "jobs", properties={"driver": "org.none.Driver"})
    assert run.cause(str(raised.value)) == (
        "Java has no class org.none.Driver: name the jar that has it by --conf spark.jars=/path/to.jar."
    )


def test_what_is_not_known_is_told_by_sparks_first_lines() -> None:
    said = "[A] first\n\tat org.Java\n" + "\n".join(f"line {n}" for n in range(40))
    assert run.cause(said).splitlines() == ["[A] first", *(f"line {n}" for n in range(11))]
