"""What a page says to people, and which English words are left in it when it should be in Chinese."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from django.test import Client

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}  # what a browser in China sends
# Names that have no Chinese: of programs and formats, of the brand, and the other language in its own words.
NAMES = {"delaytasks", "Django", "Celery", "Redis", "JavaScript", "JSON", "HTTP", "TTR", "UTC", "beat", "English"}
_WORD = re.compile(r"[A-Za-z]{3,}")
# No words: an address, a dotted name (a topic, a handler), a setting, a key, a place for what a script puts in.
_NAMES = re.compile(r"\S+@\S+|[a-z]\w*(\.[\w*]+)+|[A-Z]+(_[A-Z]+)+|[a-z]+:\d+|\{[a-z]+\}")
_SAID_BY = ("title", "aria-label", "alt", "placeholder", "value", "label", "data-text", "data-lost", "data-question",
            "data-said")  # fmt: skip
# What the library of the API keys has registered for itself, and alternatives of pictures in Django's admin.
_LIBRARY = re.compile(r"API Key Permissions|API keys?|^(Search|True|False)$")
_UNSAID = {"script", "style", "pre"}  # a pre is a program's: a body, a traceback
_CODES = {"name", "level", "url", "state", "outcome", "version"}  # members of an answer that only scripts read


class _Said(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _UNSAID:
            self._inside.append("json" if values.get("type") == "application/json" else tag)
        shown = tag != "option" and tag != "button" and values.get("type") not in ("hidden", "checkbox", "radio")
        self.said += [values[each] or "" for each in _SAID_BY if each in values and (each != "value" or shown)]

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSAID and self._inside:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.said.append(data)
        elif self._inside[-1] == "json":
            self.said += told(json.loads(data))


def told(answer: Any) -> Iterator[str]:
    """What the values of an answer in JSON say to people. A legend is made of pairs (code, words)."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name not in _CODES:
                yield from told([words for _code, words in value] if name == "legend" else value)
    elif isinstance(answer, list):
        piece = len(answer) == 3 and "<" in str(answer[-1])  # of HTML, after what it is known by and its version
        for value in answer[-1:] if piece else answer:
            yield from told(value)
    elif isinstance(answer, str):
        yield from said_in(answer) if "<" in answer else [answer]


def said_in(html: str) -> list[str]:
    reader = _Said()
    reader.feed(html)
    return reader.said


def english_in(response: Any, *, known: frozenset[str] | set[str] = frozenset()) -> list[str]:
    """The texts of a page, or of an answer in JSON, in which a word of English is neither a name nor known."""
    text = response.content.decode()
    texts = told(json.loads(text)) if response["Content-Type"].startswith("application/json") else said_in(text)
    return [
        " ".join(each.split())
        for each in texts
        if set(_WORD.findall(_NAMES.sub("", _LIBRARY.sub("", each)))) - NAMES - known
    ]


def in_chinese(user: Any) -> Client:
    client = Client(headers=CHINESE)
    client.force_login(user)
    return client
