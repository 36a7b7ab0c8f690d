"""A job's body without its secrets, which are known by the names of their keys."""

from collections.abc import Sequence
from typing import Any

HIDDEN = "••••••"


def redacted(value: Any, words: Sequence[str]) -> Any:
    """JSON data in which the value of every key that contains one of `words` is hidden, at any depth.

    Case, underscores, hyphens and spaces do not matter: "api_key" hides X-API-Key and apiKey. A
    value that is empty stays, as it says that there is no secret.
    """
    plain = [each for each in map(_plain, words) if each]
    return _redacted(value, plain)


def _redacted(value: Any, words: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {
            key: HIDDEN if each not in (None, "", [], {}) and _is_secret(key, words) else _redacted(each, words)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_redacted(each, words) for each in value]
    return value


def _is_secret(key: str, words: Sequence[str]) -> bool:
    plain = _plain(key)
    return any(word in plain for word in words)


def _plain(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())
