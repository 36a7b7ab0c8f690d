"""manage.py delaytasks <verb>: manage jobs and tokens from a shell or a script.

Exit codes: 0 success; 1 refused, no such job, or a problem was found; 2 a wrong argument, such as an unknown topic.
`pipeline` has its own exit codes: delaytasks/pipeline/exit_codes.py.
"""

import codecs
import contextlib
import errno
import json
import os
import traceback
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, SystemCheckError, no_translations
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, connections

from ... import databases
from ...exceptions import BadInput, DelaytasksError
from ...jobs import audit_log
from ..subcommands import audit_log as audit_subcommands
from ..subcommands import inbox, jobs, maintenance, queries, schedules, timeouts, tokens
from ..subcommands.arguments import USAGE, check_text, json_option
from ..subcommands.output import Answer, Verb
from ..subcommands.pipeline import command as pipeline

VERBS: dict[str, Verb] = {
    **queries.VERBS,
    **jobs.VERBS,
    **schedules.VERBS,
    **timeouts.VERBS,
    **maintenance.VERBS,
    **tokens.VERBS,
    **inbox.VERBS,
    **audit_subcommands.VERBS,
    **pipeline.VERBS,
}
REFUSED = 1


class Command(BaseCommand):
    help = (
        "Show and change jobs. Exit codes: 0 success; 1 refused, no such job, or a problem was found; 2 a wrong "
        "argument, such as an unknown topic. `pipeline` has its own exit codes: see its --help."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        for name, verb in VERBS.items():
            sub = verbs.add_parser(name, help=verb.help, description=verb.help)
            verb.arguments(sub)
            json_option(sub)
            sub.add_argument(
                "--database",
                choices=tuple(connections),
                help="database alias of the jobs (default: the router's database for writes)",
            )

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except SystemCheckError as error:
            error.returncode = VERBS[options["verb"]].failure
            raise

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        as_json, verb = options["as_json"], VERBS[options["verb"]]
        try:
            check_text(options)
            with audit_log.source(audit_log.command_source(options["verb"])):
                answer = verb.run(options, databases.alias(options["database"]))
        except DelaytasksError as error:
            self._write_error(error, as_json)
            code = USAGE if isinstance(error, BadInput) else verb.failure
            raise CommandError(str(error), returncode=code) from error
        except (ImproperlyConfigured, DatabaseError) as error:
            self._write_error(error, as_json)
            raise CommandError(_message(error), returncode=verb.failure) from error
        except CommandError as error:
            self._write_error(error, as_json)
            raise
        except Exception as error:
            if verb.failure == REFUSED:
                raise
            traceback.print_exc()  # without a CommandError, Python would exit with 1, which means: faults were found
            raise CommandError(f"{type(error).__name__}: {error}", returncode=verb.failure) from error
        try:
            self._write(answer, as_json)
        except OSError as error:
            message = f"{options['verb']} has run, but its output could not be written: {error}."
            raise CommandError(message, returncode=verb.failure) from error

    def _write(self, answer: Answer, as_json: bool) -> None:
        if as_json:
            self._write_json(answer.data)
        elif answer.text:
            self._write_text(answer.text)
        if answer.refused:
            raise CommandError(answer.refused, returncode=answer.code)

    def _write_error(self, error: Exception, as_json: bool) -> None:
        if as_json:
            with contextlib.suppress(OSError):  # the error is also written to stderr
                self._write_json({"error": type(error).__name__, "message": str(error)})

    def _write_json(self, data: Any) -> None:
        is_utf8 = codecs.lookup(self._encoding()).name == "utf-8"
        self._write_text(json.dumps(data, ensure_ascii=not is_utf8, cls=DjangoJSONEncoder))

    def _write_text(self, text: str) -> None:
        """Write to stdout. What its encoding lacks is escaped. A closed pipe is no error, as the verb has run."""
        if getattr(self.stdout, "_out", None) is None:  # closed by the shell (>&-): Python has no sys.stdout
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        encoding = self._encoding()
        try:
            self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self.stdout.flush()
        except OSError as error:
            with open(os.devnull, "wb") as devnull:
                os.dup2(devnull.fileno(), self.stdout.fileno())  # otherwise, the flush at exit fails as well
            if not isinstance(error, BrokenPipeError):
                raise

    def _encoding(self) -> str:
        return getattr(self.stdout, "encoding", None) or "utf-8"


def _message(error: Exception) -> str:
    if isinstance(error, DatabaseError):
        line = " ".join(str(error).split())
        stop = "" if line.endswith((".", "?")) else "."  # psycopg asks: "Is the server running on that host?"
        return f"Database error: {line}{stop} Check that the database is running and that `manage.py migrate` was run."
    return str(error)
