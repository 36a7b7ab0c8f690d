"""The command that starts Spark's Python processes on this machine."""

import os
import shlex
import sys
import tempfile
from functools import cache
from pathlib import Path

# Spark puts its zip of PySpark, which has no bytecode, two other archives and then the caller's path into PYTHONPATH.
# Each of its Python processes would compile the modules in the zip, though PySpark is installed: seconds of each run.
SCRIPT = f"""#!/bin/sh
PYTHONPATH=${{PYTHONPATH#*/pyspark.zip:*.jar:}} exec {shlex.quote(sys.executable)} "$@"
"""


def command() -> str:
    """Return the path of a command that starts this Python. The file is removed when this process ends.

    Where the folder for temporary files does not allow programs (noexec), it is Python itself.
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
