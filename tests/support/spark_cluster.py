"""A standalone Spark cluster on loopback, from the pip package: a master and workers of one core each.

A worker may have a view: a folder in which its executors and their Python processes run, so that /proc/self/cwd is
this folder in them. A path below /proc/self/cwd thus means different files in different processes, like a folder that
is not mounted on some hosts. No permission to mount is needed.

Workers do not find `delaytasks`: their executors have only what a run sends them.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from delaytasks.pipeline.spark import java
from tests.support import spark_classes
from tests.support.servers import die_with_parent, stop_process, tail, wait_until

START_SECONDS = 60
WORKERS = 2

VIEW = "/proc/self/cwd"


@contextlib.contextmanager
def cluster(*views: Path) -> Iterator[str]:
    """Run a cluster in a temporary folder inside the block. Yields the URL of the cluster.

    views   one folder for each worker; without views, executors run in folders that Spark creates
    """
    assert not _finds_delaytasks(), (
        "delaytasks is installed in this environment: uninstall it, as its workers need none"
    )
    with tempfile.TemporaryDirectory(prefix="delaytasks-spark-") as name, contextlib.ExitStack() as at_end:
        folder = Path(name)
        master = _start(at_end, folder, "master", "master.Master", "--port", "0")
        url = _await_log(master, folder / "master.log", r"Starting Spark master at (spark://\S+)\n")
        _await_log(master, folder / "master.log", "(I have been elected leader)")
        for n in range(WORKERS):
            work = ["--cores", "1", "--memory", "640m", "--work-dir", str(folder / f"work-{n}"), url]
            home = _java_in(folder / f"java-{n}", views[n]) if views else java.home()
            _start(at_end, folder, f"worker-{n}", "worker.Worker", *work, java_home=home)
        wait_until(
            lambda: (folder / "master.log").read_text().count("Registering worker") == WORKERS,
            seconds=START_SECONDS, what=lambda: f"the workers; the master said:\n{tail(folder / 'master.log')}",
        )  # fmt: skip
        yield url


def _finds_delaytasks() -> bool:
    """Return whether this Python has `delaytasks` where it is started as by a worker: elsewhere, without a path."""
    program = "import importlib.util; print(importlib.util.find_spec('delaytasks'))"
    command, environment = [sys.executable, "-c", program], {"PATH": os.defpath}
    found = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=True)
    return found.stdout.strip() != "None"


def _java_in(home: Path, view: Path) -> str:
    """Create a JAVA_HOME whose `java` command runs in the folder `view`. Return the path of this JAVA_HOME."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f'#!/bin/sh\ncd {shlex.quote(str(view))} && exec {shlex.quote(java.home())}/bin/java "$@"\n')
    launcher.chmod(0o755)
    return str(home)


def _start(
    at_end: contextlib.ExitStack, folder: Path, name: str, which: str, *arguments: str, java_home: str = ""
) -> "subprocess.Popen[bytes]":
    home = _find_spark_home()
    command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{which}", "--host", "127.0.0.1"]
    command += ["--webui-port", "0", *arguments]
    environment = {
        "PATH": os.defpath, "SPARK_HOME": home, "JAVA_HOME": java_home or java.home(), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "192m", "SPARK_DAEMON_JAVA_OPTS": f"{spark_classes.OPTIONS} -Dspark.ui.enabled=false",
    }  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
    at_end.callback(stop_process, process)
    return process


def _await_log(process: "subprocess.Popen[bytes]", log: Path, pattern: str) -> str:
    """Wait until the log matches the pattern. Return the first group. Raises AssertionError if the process ends."""

    def found() -> re.Match[str] | bool | None:
        return re.search(pattern, log.read_text()) or process.poll() is not None

    match = wait_until(found, seconds=START_SECONDS, what=lambda: f"{pattern!r}; it said:\n{tail(log)}")
    assert isinstance(match, re.Match), tail(log)
    return match[1]
