"""The command that starts Spark's Python processes on this machine."""

import os
import shlex
import sys
import tempfile
from functools import cache
from pathlib import Path

# Spark puts a zip of PySpark and other archives before the caller's entries in PYTHONPATH. The zip has no bytecode, so
# each Python process would compile its modules, although PySpark is installed. That would take seconds in each run, so
# the script removes these archives from PYTHONPATH.
SCRIPT = f"""#!/bin/sh
PYTHONPATH=${{PYTHONPATH#*/pyspark.zip:*.jar:}} exec {shlex.quote(sys.executable)} "$@"
"""


def command() -> str:
    """Return the path of a script that starts this Python. The file is removed when this process ends.

    If programs cannot be executed in the folder for temporary files (noexec), return the path of Python itself.
    """
    path = Path(_folder().name) / "python"
    if not path.exists():
        write(path)
    return str(path) if os.access(path, os.X_OK) else sys.executable


def write(path: Path) -> None:
    path.write_text(SCRIPT)
    path.chmod(0o755)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="delaytasks-python-")
