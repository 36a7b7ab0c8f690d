"""The texts of a page, and the English words that are left on a Chinese page."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from django.test import Client

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}  # as a browser in China sends it
# Names that are not translated: programs, formats, the brand and the name of the other language.
NAMES = {
    "delaytasks",
    "Django",
    "Celery",
    "Redis",
    "JavaScript",
    "JSON",
    "HTTP",
    "TTR",
    "UTC",
    "beat",
    "English",
    "Kafka",
    "RabbitMQ",
    "AMQP",
    "Webhook",
    "CloudEvent",
    "URL",
    "URI",
    "https",
    "BROKERS",
    "WEBHOOKS",
}
_WORD = re.compile(r"[A-Za-z]{3,}")
# Texts that are not words: addresses, paths of documents, dotted names (topics, handlers), settings, keys, and
# placeholders in scripts.
_NAMES = re.compile(r"\S+@\S+|docs/\S+|[a-z]\w*(\.[\w*]+)+|[A-Z]+(_[A-Z]+)+|[a-z]+:\d+|\{[a-z]+\}")
_TEXT_ATTRIBUTES = (
    "title", "aria-label", "alt", "placeholder", "value", "label", "data-text", "data-lost", "data-question",
    "data-announcement",
)  # fmt: skip
# Texts of the API key library, and alternative texts of icons in Django's admin.
_LIBRARY = re.compile(r"API Key Permissions|API keys?|^(Search|True|False)$")
_IGNORED_TAGS = {"script", "style", "pre"}  # pre contains bodies and tracebacks
_CODES = {"name", "level", "url", "state", "outcome", "version"}  # JSON members that only scripts read


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _IGNORED_TAGS:
            self._inside.append("json" if values.get("type") == "application/json" else tag)
        shown = tag != "option" and tag != "button" and values.get("type") not in ("hidden", "checkbox", "radio")
        self.texts += [values[name] or "" for name in _TEXT_ATTRIBUTES if name in values and (name != "value" or shown)]

    def handle_endtag(self, tag: str) -> None:
        if tag in _IGNORED_TAGS and self._inside:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.texts.append(data)
        elif self._inside[-1] == "json":
            self.texts += texts_in_json(json.loads(data))


def texts_in_json(answer: Any) -> Iterator[str]:
    """Yield the texts of a JSON response. The member "legend" consists of pairs (code, text): only the texts count."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name not in _CODES:
                yield from texts_in_json([text for _code, text in value] if name == "legend" else value)
    elif isinstance(answer, list):
        piece = len(answer) == 3 and "<" in str(answer[-1])  # HTML after an id and a version
        for value in answer[-1:] if piece else answer:
            yield from texts_in_json(value)
    elif isinstance(answer, str):
        yield from texts_in_html(answer) if "<" in answer else [answer]


def texts_in_html(html: str) -> list[str]:
    parser = _TextParser()
    parser.feed(html)
    return parser.texts


def english_in(response: Any, *, known: frozenset[str] | set[str] = frozenset()) -> list[str]:
    """Return each text of a page or JSON response with an English word that is neither a name nor in `known`."""
    text = response.content.decode()
    texts = (
        texts_in_json(json.loads(text))
        if response["Content-Type"].startswith("application/json")
        else texts_in_html(text)
    )
    return [
        " ".join(each.split())
        for each in texts
        if set(_WORD.findall(_NAMES.sub("", _LIBRARY.sub("", each)))) - NAMES - known
    ]


def in_chinese(user: Any) -> Client:
    client = Client(headers=CHINESE)
    client.force_login(user)
    return client
