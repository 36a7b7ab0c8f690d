"""manage.py delaytasks <verb>: what the admin can do and more, for a shell and for scripts.

Exit codes: 0 done; 1 refused, not found, or something is wrong; 2 the command was given wrongly.
"""

import json
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, no_translations
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, connections

from ... import engine
from ...exceptions import BadInput, DelaytasksError
from ..verbs import changing, reading, running, tokens
from ..verbs.answer import Answer, Verb
from ..verbs.arguments import USAGE
from ..verbs.pipeline import verb as pipeline

VERBS: dict[str, Verb] = {**reading.VERBS, **changing.VERBS, **running.VERBS, **tokens.VERBS, **pipeline.VERBS}
REFUSED = 1


class Command(BaseCommand):
    help = (
        "Look at jobs and change them. Exit codes: 0 done; 1 refused, not found, or something is wrong; "
        "2 the command was given wrongly."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        for name, verb in VERBS.items():
            sub = verbs.add_parser(name, help=verb.help, description=verb.help)
            verb.arguments(sub)
            sub.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
            sub.add_argument(
                "--database",
                choices=tuple(connections),
                help="where the jobs are (default: where the router writes them)",
            )

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        as_json = options["as_json"]
        try:
            answer = VERBS[options["verb"]].run(options, engine.alias(options["database"]))
        except DelaytasksError as error:
            if as_json:
                self._write_json({"error": type(error).__name__, "message": str(error)})
            code = USAGE if isinstance(error, BadInput) else REFUSED
            raise CommandError(str(error), returncode=code) from error
        except (ImproperlyConfigured, DatabaseError) as error:
            if as_json:
                self._write_json({"error": type(error).__name__, "message": str(error)})
            raise CommandError(_first_aid(error), returncode=REFUSED) from error
        self._write(answer, as_json)

    def _write(self, answer: Answer, as_json: bool) -> None:
        if as_json:
            self._write_json(answer.data)
        else:
            self.stdout.write(answer.text)
        if answer.refused:
            raise CommandError(answer.refused, returncode=REFUSED)

    def _write_json(self, data: Any) -> None:
        self.stdout.write(json.dumps(data, ensure_ascii=False, cls=DjangoJSONEncoder))


def _first_aid(error: Exception) -> str:
    if isinstance(error, DatabaseError):
        return f"The database refused: {error}. Is it there, and was `manage.py migrate` run?"
    return str(error)
