"""What a browser would send if nobody changed the form of a page."""

from html.parser import HTMLParser
from typing import Any


class _FormParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self._textarea = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        name, kind = found.get("name") or "", found.get("type")
        if tag == "textarea":
            self._textarea = name
            self.values[name] = ""
        elif tag == "input" and name and kind != "submit" and (kind != "checkbox" or "checked" in found):
            self.values[name] = found.get("value") or ("on" if kind == "checkbox" else "")

    def handle_data(self, data: str) -> None:
        if self._textarea:
            self.values[self._textarea] += data.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        self._textarea = "" if tag == "textarea" else self._textarea


def unchanged(page: Any) -> dict[str, str]:
    """Return the values of the inputs and textareas of a response's page."""
    parser = _FormParser()
    parser.feed(page.content.decode())
    return parser.values
