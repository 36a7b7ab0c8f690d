"""How a run is started: as a Python process, or by spark-submit; with what it is told in its environment."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management.base import CommandError

from .. import arguments

if TYPE_CHECKING:
    from ....pipeline.settings import Settings

ROOT = Path(__file__).parents[4]


@contextmanager
def command(question: str, settings: "Settings", *, submit: bool) -> Iterator[tuple[list[str], dict[str, str]]]:
    """(the command line, what its environment has beside ours); both hold inside the block. Raises CommandError."""
    with tempfile.TemporaryDirectory(prefix="delaytasks-run-") as folder:
        told = settings.environment(Path(folder))
        if submit:
            command, environment = _by_spark_submit(question, settings, Path(folder))
            yield command, environment | told
            return
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield [sys.executable, "-m", "delaytasks.pipeline.run", question], told | {"PYTHONPATH": path}


def _by_spark_submit(question: str, settings: "Settings", folder: Path) -> tuple[list[str], dict[str, str]]:
    from ....pipeline import submit
    from ....pipeline.java import JavaMissing
    from ....pipeline.settings import BadSettings

    try:
        return submit.command(question, settings, folder), submit.environment(settings)
    except BadSettings as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    except JavaMissing as error:
        raise CommandError(str(error)) from error
