"""Hide secrets in a job's body, recognized by the names of their keys and by their form."""

import functools
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

HIDDEN = "••••••"
SHORT = 4  # letters; a longer word is also found inside other words: "token" in "refreshtokens"
# Letters of a name of which the process remembers whether it is secret, because most bodies have the same names.
MAX_CACHED = 70
# In {"name": "password", "value": "x"}: keys that hold the name of a secret, and keys that hold its value.
NAME_KEYS = frozenset(
    {"name", "key", "k", "field", "header", "param", "parameter", "variable", "property", "attribute"}
)
VALUE_KEYS = frozenset({"value", "values", "val", "v", "content", "data", "text", "string", "default"})
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W\d_]+")
# Each repetition is bounded, so that no text takes more than linear time.
# User and password, also if the password has an unescaped "/", "?", "#" or "@".
_URL_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s/?#]{1,512}|[^\s/?#@:[]{0,512}:(?!\d{1,5}\b)[^\s@]{1,512})@")
# The same before the address of a MySQL server in Go: anna:password@tcp(host:port)
_DRIVER_CREDENTIALS = re.compile(r"""(?<![^\s"'=])[^\s:@"'=]{1,64}:[^\s"']{1,256}@(?=(?:tcp|unix)\()""")
_SCHEME = re.compile(r"\b((?:bearer|basic|digest|negotiate)\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
# From the start of the word, so that each is read once: a token begins at the first "eyJ" of it.
_JWT = re.compile(r"(?<![\w-])((?:(?!\beyJ)[\w-])*+)eyJ[\w-]{5,}+\.eyJ[\w-]{5,}+\.[\w-]*")
# A quote may have backslashes before it: JSON inside a string, inside another text.
_NAME = re.compile(
    r"""(?<![\w.-])(?P<quote>\\{0,8}["'])?"""
    r"""(?:[\w.\[\]-]{1,64}+(?:\\{0,8}["'])?\s{0,4}(?:=|:(?!//))\s{0,4}|--[\w.-]{1,64}\s{1,4}(?=[^\s-]))"""
)
# With or without CDATA: the text ends at the next tag.
_ELEMENT = re.compile(r"(<([\w.:-]{1,64})(?:\s[^<>]{0,512})?>)(?:[^<]|<(?!/|[\w.:-]{1,64}[\s>]))++(?=</\2\s{0,4}>)")
_UP_TO = r"(?:(?!{quote})(?:\\.|[^\r\n]))"  # a character of a string that ends at the quote, or at the end of the line
_STRING = _UP_TO.format(quote="(?P=quote)") + "*"
_VALUE = re.compile(
    r"""[bru]{0,2}(?P<quote>\\{0,8}["'])(?P<string>"""  # with the prefix that Python gives to bytes
    + _STRING
    + r""")|(?:(?:bearer|basic|digest|negotiate)\s+)?[^\s&;,"']+""",
    re.IGNORECASE,
)
# Headers whose values have several words.
_HEADER = re.compile(r"(?:authorization|cookie):[^\S\n]*\Z", re.IGNORECASE)
# The value is in the next lines, if they are indented, as in YAML.
_BLOCK = re.compile(r"[:=][^\S\n]*(?:[|>][-+1-9]{0,2}[^\S\n]*)?(?=\n)")
_LINE = re.compile(r"\n([^\S\n]*+)([^\n]*)")
# Lists, tuples, dicts and calls: SecretStr('x')
_OPENING = re.compile(r"[\w.]{0,64}(?=[\[({])")
_BRACKET = re.compile(r"""[\[({\])}\n]|(?P<quote>\\{0,8}["'])""" + _STRING + "(?P=quote)?")
_DEPTHS = dict.fromkeys("[({", 1) | dict.fromkeys("])}", -1)
_WORD_REST = re.compile(r"""[^\s&;,"']+""")
_OPTION = re.compile(r"--?[\w.-]{1,64}")
_SEPARATORS = re.compile(r"[\W_]+")
_ASCII_SEPARATORS = dict.fromkeys(code for code in range(128) if not chr(code).isalnum())


def redacted(value: Any, words: Sequence[str]) -> Any:
    """Return a copy of JSON data without its secrets, at any depth. Without words, nothing is hidden.

    It hides:

    - the value of a key whose name has one of `words`. Case and separators do not matter: "api_key" hides X-API-Key
      and apiKey. A word of up to four letters must be a whole word of the name: "pin" hides userPin and PIN_2, but not
      shipping. A longer word may be a part of another one.
    - the value of a pair: {"name": "password", "value": ...}, ["password", ...], the word after "--password" in a list,
      and in a text "password=...", "--password ...", <password>...</password>, "password: [...]" and the lines of
      "password: |"
    - in a text, all of a header such as "Cookie: a=1; b=2"
    - user and password in a URL or before "@tcp(", JSON Web Tokens, and what follows "Bearer" in a text

    JSON inside a string is searched too, and so are the names of keys. Empty values stay visible, because they show
    that there is no secret.
    """
    normalized = frozenset(each for each in map(_normalized, words) if each)
    return _redacted(value, normalized) if normalized else value


def _redacted(value: Any, words: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return _redacted_dict(value, words)
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str) and _is_secret(value[0], words):
            return [value[0], _hidden(value[1])]
        before = [None, *value][:-1]
        return [
            _hidden(each) if _is_secret_option(option, each, words) else _redacted(each, words)
            for option, each in zip(before, value, strict=True)
        ]
    return _redacted_text(value, words) if isinstance(value, str) else value


def _is_secret_option(option: Any, value: Any, words: frozenset[str]) -> bool:
    """Return whether `option` is one of a command, such as "--password", and `value`, the next word, its secret."""
    if not isinstance(option, str) or (isinstance(value, str) and value.startswith("--")):
        return False
    return _OPTION.fullmatch(option) is not None and _is_secret(option, words)


def _redacted_dict(value: dict[str, Any], words: frozenset[str]) -> dict[str, Any]:
    names = (each for key, each in value.items() if isinstance(each, str) and _normalized(key) in NAME_KEYS)
    is_pair = any(_is_secret(name, words) for name in names)
    return {
        key if key.isidentifier() else _redacted_text(key, words): _hidden(each)
        if _is_secret(key, words) or (is_pair and _normalized(key) in VALUE_KEYS)
        else _redacted(each, words)
        for key, each in value.items()
    }


def _merged(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; a key that is repeated has the list of its values, so that all are searched."""
    if len(values := dict(pairs)) < len(pairs):
        lists: dict[str, list[Any]] = {}
        for name, value in pairs:
            lists.setdefault(name, []).append(value)
        values |= {name: each for name, each in lists.items() if len(each) > 1}
    return values


def _hidden(value: Any) -> Any:
    return value if value in (None, "", [], {}) else HIDDEN


def _redacted_text(text: str, words: frozenset[str]) -> str:
    if text.lstrip()[:1] in ("{", "[", '"'):
        try:
            inner = json.loads(text, object_pairs_hook=_merged)
            shown = _redacted(inner, words)
        except RecursionError:
            return HIDDEN
        except ValueError:
            pass  # not JSON
        else:
            return text if shown == inner else json.dumps(shown, ensure_ascii=False)
    text = _URL_CREDENTIALS.sub(f"{HIDDEN}@", text)
    if "@tcp(" in text or "@unix(" in text:
        text = _DRIVER_CREDENTIALS.sub(f"{HIDDEN}@", text)
    text = _redacted_pairs(text, words)
    return _JWT.sub(rf"\1{HIDDEN}", _SCHEME.sub(rf"\1{HIDDEN}", text))


def _redacted_pairs(text: str, words: frozenset[str]) -> str:
    """Hide the values of "name=value", "name: value", "--name value" and <name>value</name>."""
    if not _find_words(_normalized(text), words):
        return text
    text = _ELEMENT.sub(lambda found: found[1] + HIDDEN if _is_secret(found[2], words) else found[0], text)
    parts, done = [], 0
    for name in _NAME.finditer(text):
        if name.start() < done or not _is_secret(name[0], words):
            continue
        if span := _find_value(text, name):
            parts += [text[done : span[0]], HIDDEN]
            done = span[1]
    return "".join([*parts, text[done:]])


def _find_value(text: str, name: re.Match[str]) -> tuple[int, int] | None:
    """Return the start and end of the value after a name. Its kind decides where it ends."""
    start = name.end()
    if _HEADER.search(name[0]):
        value = re.compile(_UP_TO.format(quote=re.escape(name["quote"] or "\n")) + "+").match(text, start)
        return value and value.span()
    if block := _BLOCK.match(text, name.start() + len(name[0].rstrip()) - 1):
        end = _end_of_block(text, name.start(), block.end())
        if end > block.end():
            return start, end
    if opening := _OPENING.match(text, start):
        end = _end_of_brackets(text, name.start(), opening.end())
        rest = _WORD_REST.match(text, end)
        return start, rest.end() if rest else end
    value = _VALUE.match(text, start)
    return value and value.span("string" if value["quote"] else 0)


def _end_of_block(text: str, name: int, end: int) -> int:
    """Return the end of the lines that follow the line which ends at `end` and are indented more than the name."""
    column = name - text.rfind("\n", 0, name) - 1
    for line in _LINE.finditer(text, end):
        if line[2].strip():
            if len(line[1]) + line[2].startswith("- ") <= column:
                break
            end = line.end()
    return end


def _end_of_brackets(text: str, name: int, start: int) -> int:
    """Return where the brackets that open at `start` are closed; at the latest, the end of the block."""
    depth = 0
    for found in _BRACKET.finditer(text, start):
        if found[0] == "\n":
            return _end_of_block(text, name, found.start())
        depth += _DEPTHS.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(text)


def _is_secret(name: str, words: frozenset[str]) -> bool:
    is_secret = _is_secret_cached if len(name) <= MAX_CACHED else _is_secret_cached.__wrapped__
    return is_secret(name, words)


@functools.lru_cache(maxsize=4096)
def _is_secret_cached(name: str, words: frozenset[str]) -> bool:
    found = _find_words(_normalized(name), words)
    return any(len(word) > SHORT for word in found) or (bool(found) and not words.isdisjoint(_words_of(name)))


def _find_words(normalized: str, words: frozenset[str]) -> list[str]:
    return [word for word in words if word in normalized]


def _words_of(name: str) -> Iterator[str]:
    """Yield the words of a name in lower case, also without a plural s: "userPINs" has user, pins and pin."""
    for word in _WORD.findall(_CAMEL_CASE.sub(" ", unicodedata.normalize("NFKC", name))):
        yield word.casefold()
        yield word.casefold().removesuffix("s")


def _normalized(name: str) -> str:
    """Return the letters and digits of a text in lower case."""
    if name.isascii():
        return name.lower().translate(_ASCII_SEPARATORS)
    return _SEPARATORS.sub("", unicodedata.normalize("NFKC", name).casefold())
