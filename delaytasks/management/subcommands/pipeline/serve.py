"""pipeline serve: a Spark Connect server for several runs."""

import os

from django.core.management.base import CommandError, CommandParser

from .. import arguments
from ..output import Answer, Options, Verb
from .process import needs_spark, run_application

PORT = 15002  # Spark's own default


def _arguments(parser: CommandParser) -> None:
    text = f"port on 127.0.0.1 (default: {PORT})"
    parser.add_argument("--port", type=arguments.integer(65_535), default=PORT, help=text)


def _run(options: Options, using: str) -> Answer:
    needs_spark()
    from ....pipeline.applications import serve
    from ....pipeline.config import BadSettings

    if options["submit"]:
        raise CommandError("serve starts the driver itself: leave out --submit.", returncode=arguments.USAGE)
    try:
        conf = serve.options(dict(options["conf"]), master=options["master"], port=options["port"])
    except BadSettings as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    parameters = {"port": options["port"], "parent": os.getpid()}
    answer = run_application("serve", {**options, "conf": list(conf.items())}, using, parameters, lasts=True)
    return Answer(answer, f"served for {answer['seconds']} s")


VERB = Verb(
    "Run a Spark Connect server on this machine, so that runs with --master sc://localhost:PORT do not each start "
    "Spark. Runs until stopped by SIGTERM or Ctrl-C.",
    _arguments,
    _run,
)
