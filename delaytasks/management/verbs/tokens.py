"""token make, list, revoke: who may call over HTTP. The app for it is optional, and asked for only when it is used."""

import argparse
import math
from types import ModuleType
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management.base import CommandError, CommandParser

from ... import words
from . import arguments
from .answer import Answer, Options, Verb, rfc3339, table

RIGHTS = ("produce", "consume", "manage")
NOT_INSTALLED = 'Tokens need the HTTP side: add "rest_framework_api_key" and "delaytasks.api" to INSTALLED_APPS.'
LONGEST_DAYS = 36_500


def _api() -> ModuleType:
    """delaytasks.api.tokens. Raises ImproperlyConfigured where the site does not have that app."""
    if not apps.is_installed("delaytasks.api"):
        raise ImproperlyConfigured(NOT_INSTALLED)
    from ...api import tokens

    return tokens


def _arguments(parser: CommandParser) -> None:
    verbs = parser.add_subparsers(dest="token_verb", metavar="make | list | revoke", required=True)
    for name, verb in TOKEN_VERBS.items():
        sub = verbs.add_parser(name, help=verb.help, description=verb.help)
        verb.arguments(sub)
        # Without a default of its own, which would take back what was said before the inner verb.
        sub.add_argument(
            "--json", action="store_true", dest="as_json", default=argparse.SUPPRESS, help="one JSON document on stdout"
        )


def _run(options: Options, using: str) -> Answer:
    return TOKEN_VERBS[options["token_verb"]].run(options, using)


# -- make ---------------------------------------------------------------------------------------


def _make_arguments(parser: CommandParser) -> None:
    parser.add_argument("--account", required=True, metavar="NAME", help="whose it is; made if it is missing")
    for right in RIGHTS:
        parser.add_argument(
            f"--{right}", action="append", default=[], metavar="TOPIC",
            help=f"may {right}: a topic (order.close), a prefix (order.*) or '*'; as often as needed",
        )  # fmt: skip
    parser.add_argument("--expires-days", type=_days, metavar="DAYS", help="not accepted after so many days")
    parser.add_argument("--rate-per-minute", type=_whole, metavar="N", help="(default: API_RATE_PER_MINUTE)")
    parser.add_argument("--max-request-bytes", type=_whole, metavar="N", help="(default: API_MAX_REQUEST_BYTES)")
    parser.add_argument("--name", help="what it is for, or where it is kept (default: who made it)")


def _make(options: Options, using: str) -> Answer:
    tokens = _api()
    grants = {right: options[right] for right in RIGHTS}
    if not any(grants.values()):
        raise CommandError("Grant something: --produce, --consume or --manage TOPIC.", returncode=arguments.USAGE)
    try:
        token, secret = tokens.make(
            options["account"], grants, name=options["name"] or arguments.by_of({"by": None})[:50],
            expires_days=options["expires_days"], rate_per_minute=options["rate_per_minute"],
            max_request_bytes=options["max_request_bytes"],
        )  # fmt: skip
    except ValidationError as error:
        raise CommandError("; ".join(_sentences(error)), returncode=arguments.USAGE) from error
    return Answer({"secret": secret, "token": _data(tokens, token)}, _secret_text(token, secret))


def _sentences(error: ValidationError) -> list[str]:
    if not hasattr(error, "error_dict"):
        return error.messages
    return [f"{field}: {' '.join(said)}" for field, said in error.message_dict.items()]


def _secret_text(token: Any, secret: str) -> str:
    return (
        f"Token {token.prefix} of {token.account.name}. Its secret is shown this once and stored nowhere:\n\n"
        f"    {secret}\n\n"
        "What it may see, where this site's API is mounted:\n\n"
        f'    curl -H "Authorization: Bearer {secret}" https://YOUR-HOST/api/topics/'
    )


# -- list ---------------------------------------------------------------------------------------


def _list_arguments(parser: CommandParser) -> None:
    parser.add_argument("--account", metavar="NAME", help="those of one account only")


def _list(options: Options, using: str) -> Answer:
    tokens = _api()
    found = list(tokens.every(options["account"]))
    head = ("prefix", "account", "name", "", "grants", "expires", "last used")
    rows = [
        (each.prefix, each.account.name, each.name, tokens.standing(each), "; ".join(map(str, each.grants.all())),
         _when(each.expiry_date), _when(each.last_used_at))
        for each in found
    ]  # fmt: skip
    return Answer([_data(tokens, each) for each in found], table(head, rows) if rows else "No tokens.")


def _when(moment: Any) -> str:
    return "never" if moment is None else str(words.absolute(moment))


def _data(tokens: ModuleType, token: Any) -> dict[str, Any]:
    """With times as the other verbs write them."""
    data: dict[str, Any] = tokens.data(token)
    return data | {key: rfc3339(value) for key, value in data.items() if key.endswith("_at")}


# -- revoke -------------------------------------------------------------------------------------


def _revoke_arguments(parser: CommandParser) -> None:
    parser.add_argument("prefix", nargs="?", metavar="PREFIX", help="the token's, as `token list` shows it")
    parser.add_argument("--account", metavar="NAME", help="all of this account's tokens")


def _revoke(options: Options, using: str) -> Answer:
    tokens = _api()
    prefix, account = options["prefix"], options["account"]
    if (prefix is None) == (account is None):
        raise CommandError("Name the token by its PREFIX, or its --account.", returncode=arguments.USAGE)
    found = tokens.every(account) if prefix is None else tokens.every().filter(prefix=prefix)
    revoked = tokens.revoke(found)
    if revoked:
        return Answer({"revoked": revoked}, f"revoked: {', '.join(revoked)}")
    asked = f"the prefix {prefix!r}" if account is None else f"the account {account!r}"
    why = f"What has {asked} is revoked already." if found.exists() else f"No token has {asked}."
    return Answer({"revoked": []}, "nothing revoked", why)


# -- arguments ----------------------------------------------------------------------------------


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 < days <= LONGEST_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days above 0 and up to {LONGEST_DAYS}")
    return days


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 1_000_000_000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000000000")
    return int(text)


TOKEN_VERBS: dict[str, Verb] = {
    "make": Verb("A new token; its secret is shown once.", _make_arguments, _make),
    "list": Verb("Tokens with what they may do; never their secrets.", _list_arguments, _list),
    "revoke": Verb("Refuse a token, or all of an account, from the next request on.", _revoke_arguments, _revoke),
}
VERBS: dict[str, Verb] = {"token": Verb("Tokens of those who call over HTTP: make, list, revoke.", _arguments, _run)}
