"""What lets Spark's processes start in half of the CPU time: an archive of classes for Java, bytecode for Python.

The archive is made once for a virtual environment and kept in it: see make(). A JVM that finds no archive, or one of
another version, runs without it.
"""

import contextlib
import fcntl
import os
import sys
from pathlib import Path

import pyspark

from delaytasks.pipeline.spark import class_archive, java, python

FOLDER = Path(sys.prefix).resolve() / "spark-classes"  # clones that share the environment by a link share the archive
# A few rows: to make code quick takes longer than to run it slowly. With one compiler Java reserves 48 MB for its code
# where it would reserve 240, which is too little: it would discard code and compile it again.
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:disable"
OPTIONS = f"{QUICK} -XX:SharedArchiveFile={FOLDER}/java.jsa:{FOLDER}/spark.jsa"
NO_CODEGEN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
PYTHON = FOLDER / "python"


def make() -> None:
    """Make the archive if this Java and this Spark have none. A JVM that cannot make one is no error."""
    FOLDER.mkdir(exist_ok=True)
    new = FOLDER / f"python.{os.getpid()}"
    python.write(new)
    new.rename(PYTHON)
    home = java.home()
    ours = f"Java {java.version(Path(home) / 'bin' / 'java')}, Spark {pyspark.__version__}, {OPTIONS}"
    with (FOLDER / "made").open("a+") as made:
        fcntl.flock(made, fcntl.LOCK_EX)  # of two processes that test, one waits
        made.seek(0)
        if made.read() == ours:
            return
        print(f"Making the archive of Spark's classes in {FOLDER}.", flush=True)
        with contextlib.suppress(OSError):
            class_archive.make(FOLDER, QUICK)
        made.truncate(0)
        made.write(ours)
