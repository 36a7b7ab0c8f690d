"""A standalone Spark cluster on loopback, from the pip package: a master and workers of one core each."""

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from delaytasks.pipeline import java
from tests.servers import die_with_parent, stop_process, tail, wait_until

START_SECONDS = 60
WORKERS = 2
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.ui.enabled=false"


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Its URL. What it writes lies in a folder of its own; it ends with the block, whatever happens there."""
    with tempfile.TemporaryDirectory(prefix="delaytasks-spark-") as name, contextlib.ExitStack() as at_end:
        folder = Path(name)
        master = _start(at_end, folder, "master", "master.Master", "--port", "0")
        url = _said(master, folder / "master.log", r"Starting Spark master at (spark://\S+)\n")
        _said(master, folder / "master.log", "(I have been elected leader)")
        for n in range(WORKERS):
            work = ["--cores", "1", "--memory", "640m", "--work-dir", str(folder / f"work-{n}"), url]
            _start(at_end, folder, f"worker-{n}", "worker.Worker", *work)
        wait_until(
            lambda: (folder / "master.log").read_text().count("Registering worker") == WORKERS,
            seconds=START_SECONDS, what=lambda: f"the workers; the master said:\n{tail(folder / 'master.log')}",
        )  # fmt: skip
        yield url


def _start(
    at_end: contextlib.ExitStack, folder: Path, name: str, which: str, *arguments: str
) -> "subprocess.Popen[bytes]":
    home = _find_spark_home()
    command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{which}", "--host", "127.0.0.1"]
    command += ["--webui-port", "0", *arguments]
    environment = {
        "PATH": os.defpath, "SPARK_HOME": home, "JAVA_HOME": java.home(), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "192m", "SPARK_DAEMON_JAVA_OPTS": QUICK,
    }  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
    at_end.callback(stop_process, process)
    return process


def _said(process: "subprocess.Popen[bytes]", log: Path, pattern: str) -> str:
    """What it says in its log that matches, when it has said it."""

    def found() -> re.Match[str] | bool | None:
        return re.search(pattern, log.read_text()) or process.poll() is not None

    match = wait_until(found, seconds=START_SECONDS, what=lambda: f"{pattern!r}; it said:\n{tail(log)}")
    assert isinstance(match, re.Match), tail(log)
    return match[1]
