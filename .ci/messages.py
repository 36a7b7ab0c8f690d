"""Keeps the translations up to date with the sources: `make messages`. Needs nothing but pip's Babel.

For each folder with a locale/ in it: what the sources say for people goes into each django.po, where new
texts wait empty for their translation and those that nobody says any more are dropped; then each django.mo
is compiled. A text in two catalogues is taken from the app that INSTALLED_APPS has first.
"""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import django  # noqa: E402  the path above comes first
from babel.messages.catalog import Catalog  # noqa: E402
from babel.messages.extract import extract  # noqa: E402
from babel.messages.mofile import write_mo  # noqa: E402
from babel.messages.pofile import read_po, write_po  # noqa: E402
from django.utils.translation.template import templatize  # noqa: E402

SOURCES = {  # where a catalogue is: whose words are in it
    "delaytasks": ("delaytasks",),
    "project/shop": ("project", "templates"),
}
KEYWORDS: dict = {  # which argument is what: None, the first one; (n, "c"), the context
    "_": None, "gettext": None, "gettext_lazy": None, "gettext_noop": None,
    "ngettext": (1, 2), "ngettext_lazy": (1, 2),
    "pgettext": ((1, "c"), 2), "pgettext_lazy": ((1, "c"), 2), "npgettext": ((1, "c"), 2, 3),
}  # fmt: skip
HEADER = ("Language", "MIME-Version", "Content-Type", "Content-Transfer-Encoding", "Plural-Forms")


class Undated(Catalog):
    """A catalogue whose header says nothing of days and tools, so that the same texts make the same files."""

    def _get_mime_headers(self) -> list:
        return [each for each in Catalog._get_mime_headers(self) if each[0] in HEADER]

    mime_headers = property(_get_mime_headers, Catalog._set_mime_headers)


def catalogues() -> Iterator[tuple[Path, str]]:
    """Each django.po, and the folder that it is for."""
    for folder in SOURCES:
        for po in sorted((ROOT / folder / "locale").glob("*/LC_MESSAGES/django.po")):
            yield po, folder


def extracted(folder: str) -> Catalog:
    """What is said to people by the sources of this folder's catalogue. No translations."""
    found = Catalog()
    for source in SOURCES[folder]:
        for path in sorted((ROOT / source).rglob("*")):
            if path.suffix in (".py", ".html") and "migrations" not in path.parts:
                for _line, said, _comments, context in _texts(path):
                    found.add(said, locations=[(str(path.relative_to(ROOT)), 1)], context=context)
    return found


def _texts(path: Path) -> Iterator[tuple]:
    text = path.read_text()
    if path.suffix == ".html":
        # As Python, one statement to a line and no indentation: a tokenizer wants no more.
        text = "\n".join(line.lstrip() for line in templatize(text, origin=str(path)).splitlines())
    yield from extract("python", io.BytesIO(text.encode()), keywords=KEYWORDS, options={"encoding": "utf-8"})


def read(po: Path) -> Catalog:
    with po.open("rb") as file:
        stored = read_po(file, abort_invalid=True)
    stored.__class__ = Undated
    return stored


def updated(po: Path, folder: str) -> Catalog:
    """The catalogue as the sources want it, with the translations that it has."""
    stored = read(po)
    template = extracted(folder)
    stored.update(template, no_fuzzy_matching=True, update_header_comment=False)
    stored.obsolete.clear()
    return stored


def as_po(catalogue: Catalog) -> bytes:
    file = io.BytesIO()
    write_po(file, catalogue, width=110, include_lineno=False, sort_by_file=True)
    return file.getvalue()


def as_mo(catalogue: Catalog) -> bytes:
    file = io.BytesIO()
    write_mo(file, catalogue)
    return file.getvalue()


def main() -> int:
    django.setup()
    empty = 0
    for po, folder in catalogues():
        catalogue = updated(po, folder)
        po.write_bytes(as_po(catalogue))
        po.with_suffix(".mo").write_bytes(as_mo(catalogue))
        missing = sum(1 for each in catalogue if each.id and not (each.string and all([*each.string])))
        print(f"{po.relative_to(ROOT)}: {len(catalogue)} texts, {missing} without a translation")
        empty += missing
    return 1 if empty else 0


if __name__ == "__main__":
    raise SystemExit(main())
