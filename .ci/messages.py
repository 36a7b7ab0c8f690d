"""Update the translations from the sources: `make messages`. Needs Babel, not GNU gettext.

For each folder with a locale/: extract the translatable texts into each django.po, add new ones with an empty
translation, remove unused ones, and compile django.mo. If two catalogues have the same text, the translation comes
from the app that is first in INSTALLED_APPS. Exits with 1 if a translation is missing.
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

SOURCES = {  # folder of a catalogue -> folders with its sources
    "delaytasks": ("delaytasks",),
    "project/shop": ("project", "templates"),
}
KEYWORDS: dict = {  # function -> positions of its texts; None: the first argument; (n, "c"): the context
    "_": None, "gettext": None, "gettext_lazy": None, "gettext_noop": None,
    "ngettext": (1, 2), "ngettext_lazy": (1, 2),
    "pgettext": ((1, "c"), 2), "pgettext_lazy": ((1, "c"), 2), "npgettext": ((1, "c"), 2, 3),
}  # fmt: skip
HEADER = ("Language", "MIME-Version", "Content-Type", "Content-Transfer-Encoding", "Plural-Forms")


class Undated(Catalog):
    """A catalogue without dates and tool versions in its header, so that the output is reproducible."""

    def _get_mime_headers(self) -> list:
        return [header for header in Catalog._get_mime_headers(self) if header[0] in HEADER]

    mime_headers = property(_get_mime_headers, Catalog._set_mime_headers)


def catalogues() -> Iterator[tuple[Path, str]]:
    """Yield each django.po with its folder."""
    for folder in SOURCES:
        for po in sorted((ROOT / folder / "locale").glob("*/LC_MESSAGES/django.po")):
            yield po, folder


def extracted(folder: str) -> Catalog:
    """Return a catalogue of the texts in a folder's sources, without translations."""
    template = Catalog()
    for source in SOURCES[folder]:
        for path in sorted((ROOT / source).rglob("*")):
            if path.suffix in (".py", ".html") and "migrations" not in path.parts:
                for _line, text, _comments, context in _texts(path):
                    template.add(text, locations=[(str(path.relative_to(ROOT)), 1)], context=context)
    return template


def _texts(path: Path) -> Iterator[tuple]:
    text = path.read_text()
    if path.suffix == ".html":
        # Convert the template to Python: one statement per line, no indentation.
        text = "\n".join(line.lstrip() for line in templatize(text, origin=str(path)).splitlines())
    yield from extract("python", io.BytesIO(text.encode()), keywords=KEYWORDS, options={"encoding": "utf-8"})


def read(po: Path) -> Catalog:
    with po.open("rb") as file:
        stored = read_po(file, abort_invalid=True)
    stored.__class__ = Undated
    return stored


def updated(po: Path, folder: str) -> Catalog:
    """Return the catalogue updated from the sources; existing translations are kept."""
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
        missing = sum(1 for message in catalogue if message.id and not (message.string and all([*message.string])))
        print(f"{po.relative_to(ROOT)}: {len(catalogue)} texts, {missing} without a translation")
        empty += missing
    return 1 if empty else 0


if __name__ == "__main__":
    raise SystemExit(main())
