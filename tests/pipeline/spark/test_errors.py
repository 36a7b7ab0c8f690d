"""Known errors of Spark are reported in a sentence, without the Java stack trace."""

from typing import Any

import pytest
from django.db import connection
from pyspark.errors import PySparkException

from delaytasks.pipeline.sources import arrow
from delaytasks.pipeline.sources.database import Database, NotAllowed
from delaytasks.pipeline.sources.snapshot import Snapshot
from delaytasks.pipeline.spark import errors

PYTHON_DIFFERS = (
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot "
    "run with different minor versions."
)


@pytest.mark.only_on("postgresql")
def test_a_missing_privilege_is_named_by_spark_and_the_driver(spark: Any, reader: Database) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"REVOKE SELECT ON delaytasks_jobevent FROM {reader.user}")
    assert arrow.read(spark, Snapshot(reader, 0, 0, 0), "jobs").count() == 0
    with pytest.raises(PySparkException) as raised:
        arrow.read(spark, Snapshot(reader, 0, 0, 0), "events").count()
    assert errors.summary(raised.value)[1] == (
        "The database refuses the pipeline's user: permission denied for table delaytasks_jobevent. "
        "GRANT SELECT on it and run this again."
    )
    wanted = f"user {reader.user}: permission denied for table delaytasks_job"
    with pytest.raises(NotAllowed, match=wanted), reader.connect() as connected:
        connected.execute("DELETE FROM delaytasks_job")


@pytest.mark.only_on("sqlite")
def test_a_missing_jar_is_reported_with_the_option_for_it(spark: Any) -> None:
    with pytest.raises(Exception, match="ClassNotFound") as raised:
        spark.read.jdbc("jdbc:none://db", "jobs", properties={"driver": "org.none.Driver"})
    assert errors.summary(raised.value)[1] == (
        "Java has no class org.none.Driver: name its jar with --conf spark.jars=/path/to.jar."
    )
    with pytest.raises(Exception, match="ClassNotFound") as raised:
        spark.range(1).write.parquet("s3a://lake/rows")
    assert errors.summary(raised.value)[1].startswith(
        "Java has no class org.apache.hadoop.fs.s3a.S3AFileSystem, with which Spark uses S3. Name Hadoop's jars with "
    )


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ('java.io.IOException: Cannot run program "/srv/shop/python": error=2, No such file or directory',
         'An executor cannot start Python: there is no "/srv/shop/python". Install Python with '),
        (PYTHON_DIFFERS, "Python in worker has different version: 3.12 than that in driver: 3.11. Use the "),
    ],
)  # fmt: skip
def test_an_executors_absent_or_different_python_is_named(message: str, sentence: str) -> None:
    name, found = errors.summary(RuntimeError(f"Job aborted due to stage failure:\n{message}\nCaused by: more"))
    assert (name, found.startswith(sentence)) == ("RuntimeError", True), found
    assert "PYSPARK_PYTHON" in found


def test_a_port_in_use_is_named() -> None:
    message = "JavaSparkContext.\n: java.net.BindException: Failed to bind to address /127.0.0.1:15002: Service failed"
    assert errors.summary(RuntimeError(message))[1] == (
        "Failed to bind to address /127.0.0.1:15002: another process uses this port. End it, or choose another port "
        "(serve: --port)."
    )


def test_an_unknown_error_is_reported_by_sparks_first_lines() -> None:
    message = "[A] first\n\tat org.Java\n\t\tat org.Java\n" + "\n".join(f"line {n}" for n in range(40))
    assert errors.summary(Exception(message))[1].splitlines() == ["[A] first", *(f"line {n}" for n in range(11))]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("pyspark: x\nadbc_driver_manager.OperationalError: IO: the end.\nat", "IO: the end"),
        ('ERROR: invalid snapshot identifier: "0003-1"', "invalid snapshot identifier"),
        ('ERROR: snapshot "0003-1" does not exist', 'snapshot "0003-1" does not exist'),
    ],
)
def test_a_lost_database_is_recognized_in_every_form_of_the_error(message: str, why: str) -> None:
    assert errors.summary(Exception(message)) == (
        "DatabaseUnavailable",
        f"The database went away: {why}. Run this again when the database is back.",
    )


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("[INVALID_CONF_VALUE] The value 'x y' in the config \"spark.a\" is invalid. It should be a number.",
         "The value 'x y' in the config \"spark.a\" is invalid."),
        ("Illegal value for config key spark.a: For input", "Illegal value for config key spark.a: For input"),
        ("[CODEC_NOT_AVAILABLE] The codec x is not available. Consider", "The codec x is not available."),
    ],
)  # fmt: skip
def test_an_option_with_a_bad_value_is_named(message: str, sentence: str) -> None:
    assert errors.bad_option(RuntimeError(message)) == f"A Spark option (--conf) is wrong: {sentence}"
    assert errors.bad_option(RuntimeError("The value of an expression is invalid.")) == ""
