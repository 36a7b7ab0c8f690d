"""pipeline prepare-java: let the Java processes of later runs start faster."""

from django.core.management.base import CommandError

from ....pipeline.exit_codes import ExitCode
from .. import arguments
from ..output import Answer, Options, Verb
from .process import needs_spark


def _run(options: Options, using: str) -> Answer:
    needs_spark()
    from ....pipeline.spark import class_archive
    from ....pipeline.spark.java import JavaMissing

    try:
        path = class_archive.make(class_archive.FOLDER)
    except (JavaMissing, OSError) as error:
        raise CommandError(str(error), returncode=ExitCode.COULD_NOT_RUN) from error
    return Answer({"archive": str(path)}, f"Runs of this Python environment start faster with {path}.")


VERB = Verb(
    "Write an archive of Spark's classes for Java into this Python environment (200 MB, half a minute), so that later "
    "runs start in about half of the time. Repeat it after an upgrade of Spark or Java.",
    arguments.none,
    _run,
)
