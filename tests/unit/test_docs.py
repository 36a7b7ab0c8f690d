"""What the documents say of the settings is what the code does."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

from delaytasks.conf import Settings

PAGE = Path(__file__).parents[2] / "docs" / "how-it-runs.md"
ROW = re.compile(r"^\| (`[A-Z_`, ]+`) \| (.*?) \|", re.MULTILINE)


def documented() -> dict[str, str]:
    """Each setting's default, as the page has it."""
    found = {}
    for names, defaults in ROW.findall(PAGE.read_text()):
        each = [name.strip().strip("`") for name in names.split(",")]
        found |= dict(zip(each, defaults.split(", ") if len(each) > 1 else [defaults], strict=True))
    return found


def test_the_page_names_every_setting_and_no_other():
    assert set(documented()) == {field.name.upper() for field in fields(Settings)}


def test_the_pages_defaults_are_the_real_ones():
    said = documented()
    for field in fields(Settings):
        default, text = field.default, said[field.name.upper()].strip("`").strip('"')
        if isinstance(default, bool) or default is MISSING:
            assert text in (str(default), "{}"), field.name
        elif isinstance(default, tuple):
            assert tuple(text.split(", ")) == default, field.name
        elif isinstance(default, int | float):
            assert text == "ten years" or float(text) == default, field.name
        else:
            assert text == (default or "none"), field.name
