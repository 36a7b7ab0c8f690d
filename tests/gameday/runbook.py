"""Find the section of a page to which an alert leads."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def section(address: str) -> str:
    """Return the text of a section such as docs/howto/runbook.md#beat. Raises LookupError if there is none."""
    page, _, anchor = address.partition("#")
    parts = _HEADING.split((ROOT / page).read_text())
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        if _anchor(heading) == anchor:
            return text
    raise LookupError(f"{page} has no section {anchor!r}.")


def _anchor(heading: str) -> str:
    return heading.replace("`", "").strip().lower().replace(" ", "-")


def says(address: str, step: str) -> bool:
    """Return whether the section says this, wherever its lines break. Raises LookupError."""
    return " ".join(step.split()) in " ".join(section(address).split())
