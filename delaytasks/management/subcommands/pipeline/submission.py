"""Build the command line and environment of a run: a Python process, or spark-submit."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management.base import CommandError

from ....pipeline.exit_codes import ExitCode
from .. import arguments

if TYPE_CHECKING:
    from ....pipeline.config import Settings

ROOT = Path(__file__).parents[4]


@contextmanager
def command(application: str, settings: "Settings", *, submit: bool) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield (command line, additional environment variables), valid only inside the block. Raises CommandError."""
    with tempfile.TemporaryDirectory(prefix="delaytasks-run-") as folder:
        variables = settings.environment(Path(folder))
        if submit:
            command, environment = _by_spark_submit(application, settings, Path(folder))
            yield command, environment | variables
            return
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield [sys.executable, "-m", "delaytasks.pipeline", application], variables | {"PYTHONPATH": path}


def _by_spark_submit(application: str, settings: "Settings", folder: Path) -> tuple[list[str], dict[str, str]]:
    from ....pipeline.config import BadSettings
    from ....pipeline.spark import submit
    from ....pipeline.spark.java import JavaMissing

    try:
        return submit.command(application, settings, folder), submit.environment(settings)
    except BadSettings as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    except JavaMissing as error:
        raise CommandError(str(error), returncode=ExitCode.COULD_NOT_RUN) from error
