"""Subcommands for API tokens: make, list, revoke. delaytasks.api is optional, so it is imported only when used."""

import argparse
import math
from types import ModuleType
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management.base import CommandError, CommandParser

from ... import formatting
from . import arguments
from .output import Answer, Options, Verb, rfc3339, table

RIGHTS = {
    "submit": "create jobs, without seeing any",
    "produce": "produce",
    "consume": "consume",
    "manage": "manage",
}
NOT_INSTALLED = 'Tokens require the HTTP API: add "rest_framework_api_key" and "delaytasks.api" to INSTALLED_APPS.'
MAX_DAYS = 36_500


def _api() -> ModuleType:
    """Return the module delaytasks.api.access.tokens. Raises ImproperlyConfigured if the app is not installed."""
    if not apps.is_installed("delaytasks.api"):
        raise ImproperlyConfigured(NOT_INSTALLED)
    from ...api.access import tokens

    return tokens


def _arguments(parser: CommandParser) -> None:
    verbs = parser.add_subparsers(dest="token_verb", metavar="make | list | revoke", required=True)
    for name, verb in TOKEN_VERBS.items():
        sub = verbs.add_parser(name, help=verb.help, description=verb.help)
        verb.arguments(sub)
        # No default here: it would override a --json that comes before the inner subcommand.
        arguments.json_option(sub, default=argparse.SUPPRESS)


def _run(options: Options, using: str) -> Answer:
    return TOKEN_VERBS[options["token_verb"]].run(options, using)


# -- make ---------------------------------------------------------------------------------------


def _make_arguments(parser: CommandParser) -> None:
    parser.add_argument("--account", required=True, metavar="NAME", help="the service account; created if missing")
    for right, what in RIGHTS.items():
        parser.add_argument(
            f"--{right}", action="append", default=[], metavar="TOPIC",
            help=f"may {what}: a topic (order.close), a prefix (order.*) or '*'; repeatable",
        )  # fmt: skip
    positive = arguments.integer(1_000_000_000)
    parser.add_argument("--expires-days", type=_days, metavar="DAYS", help="lifetime in days (default: unlimited)")
    parser.add_argument(
        "--rate-per-minute", type=positive, metavar="N", help="requests per minute (default: API_RATE_PER_MINUTE)"
    )
    parser.add_argument(
        "--max-request-bytes", type=positive, metavar="N", help="largest request body (default: API_MAX_REQUEST_BYTES)"
    )
    parser.add_argument(
        "--max-live-jobs",
        type=positive,
        metavar="N",
        help="largest number of live jobs created with the token (default: API_MAX_LIVE_JOBS)",
    )
    parser.add_argument("--name", help="purpose or place of the token (default: command:USER)")


def _make(options: Options, using: str) -> Answer:
    tokens = _api()
    grants = {right: options[right] for right in RIGHTS}
    if not any(grants.values()):
        raise CommandError(
            "Give at least one of --submit, --produce, --consume and --manage.", returncode=arguments.USAGE
        )
    try:
        token, secret = tokens.create(
            options["account"], grants, name=options["name"] or arguments.os_actor()[:50],
            expires_days=options["expires_days"], rate_per_minute=options["rate_per_minute"],
            max_request_bytes=options["max_request_bytes"], max_live_jobs=options["max_live_jobs"],
            by=arguments.os_actor(),
        )  # fmt: skip
    except ValidationError as error:
        raise CommandError("; ".join(_sentences(error)), returncode=arguments.USAGE) from error
    return Answer({"secret": secret, "token": _data(tokens, token)}, _secret_text(token, secret))


def _sentences(error: ValidationError) -> list[str]:
    """Return the messages of a wrong option, which begin with its name."""
    if not hasattr(error, "error_dict"):
        return error.messages
    return [f"{_option(field)}: {' '.join(messages)}" for field, messages in error.message_dict.items()]


def _option(field: str) -> str:
    return "TOPIC" if field == "topic" else f"--{field.replace('_', '-')}"


def _secret_text(token: Any, secret: str) -> str:
    return (
        f"Token {token.prefix} of {token.account.name}. This is its secret, shown only once and not stored:\n\n"
        f"    {secret}\n\n"
        "Test it, with the URL of this site's API:\n\n"
        f'    curl -H "Authorization: Bearer {secret}" https://YOUR-HOST/api/topics/'
    )


# -- list ---------------------------------------------------------------------------------------


def _list_arguments(parser: CommandParser) -> None:
    parser.add_argument("--account", metavar="NAME", help="only tokens of this account")


def _list(options: Options, using: str) -> Answer:
    tokens = _api()
    selected = list(tokens.list_tokens(options["account"]))
    head = ("prefix", "account", "name", "", "grants", "expires", "last used", "created by", "revoked by")
    rows = [
        (each.prefix, each.account.name, each.name, tokens.status(each), "; ".join(map(str, each.grants.all())),
         _when(each.expiry_date), _when(each.last_used_at), each.created_by or "-", each.revoked_by or "-")
        for each in selected
    ]  # fmt: skip
    return Answer([_data(tokens, each) for each in selected], table(head, rows) if rows else "No tokens.")


def _when(moment: Any) -> str:
    return "never" if moment is None else str(formatting.absolute(moment))


def _data(tokens: ModuleType, token: Any) -> dict[str, Any]:
    """Return the token's data, with times formatted as in other subcommands."""
    data: dict[str, Any] = tokens.data(token)
    return data | {key: rfc3339(value) for key, value in data.items() if key.endswith("_at")}


# -- revoke -------------------------------------------------------------------------------------


def _revoke_arguments(parser: CommandParser) -> None:
    parser.add_argument("prefix", nargs="?", metavar="PREFIX", help="prefix of the token, see `token list`")
    parser.add_argument("--account", metavar="NAME", help="all of this account's tokens")


def _revoke(options: Options, using: str) -> Answer:
    tokens = _api()
    prefix, account = options["prefix"], options["account"]
    if (prefix is None) == (account is None):
        raise CommandError("Give either the PREFIX of a token or an --account.", returncode=arguments.USAGE)
    selected = tokens.list_tokens(account) if prefix is None else tokens.list_tokens().filter(prefix=prefix)
    revoked = tokens.revoke(selected, arguments.os_actor())
    if revoked:
        return Answer({"revoked": revoked}, f"revoked: {', '.join(revoked)}")
    label = f"the prefix {prefix!r}" if account is None else f"the account {account!r}"
    reason = (
        f"All tokens with {label} are revoked already." if selected.exists() else f"There is no token with {label}."
    )
    return Answer({"revoked": []}, "nothing revoked", reason)


# -- arguments ----------------------------------------------------------------------------------


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 < days <= MAX_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days above 0 and up to {MAX_DAYS}")
    return days


TOKEN_VERBS: dict[str, Verb] = {
    "make": Verb("Create a token and show its secret once.", _make_arguments, _make),
    "list": Verb("List tokens and their grants, without secrets.", _list_arguments, _list),
    "revoke": Verb("Revoke a token, or all tokens of an account, with immediate effect.", _revoke_arguments, _revoke),
}
VERBS: dict[str, Verb] = {"token": Verb("Manage API tokens: make, list, revoke.", _arguments, _run)}
