"""The option --html: write a copy of the page with the results to a file."""

import os
from pathlib import Path

from django.core.management.base import CommandError, CommandParser

from .. import arguments
from ..output import Options


def add_argument(parser: CommandParser) -> None:
    parser.add_argument("--html", metavar="FILE", default="", help="also write the page to this file")


def writable(options: Options) -> str:
    """Check that the file of --html can be written. Return its path, or "" without --html. Raises CommandError."""
    if not options["html"]:
        return ""
    file = Path(options["html"]).absolute()
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        problem = "is a folder" if file.is_dir() else "cannot be written" if file.parent.is_dir() else "has no folder"
        message = f"--html: {file} {problem}: give a file in an existing folder."
        raise CommandError(message, returncode=arguments.USAGE)
    return str(file)
