"""The table of a game day, printed and written into docs/howto/gameday.md."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.torture.report import put_into

from .drill import Result
from .rules import FACTOR

DOCUMENT = Path(__file__).parents[2] / "docs" / "howto" / "gameday.md"
HEAD = (
    "failure", "alert", "fired after", "with the real rules", "others", "health says", "page", "mended after",
    "alert ended after", "jobs",
)  # fmt: skip


def table(results: Sequence[Result], minutes: float) -> str:
    """Return the facts of the run and a row for each failure, in Markdown."""
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.system()} on {platform.machine()}, "
        f"Python {platform.python_version()}; {minutes:.0f} minutes for all; times divided by {FACTOR}."
    )
    return "\n".join([about, "", _cells(HEAD), "|" + "---|" * len(HEAD), *map(row, results)]) + "\n"


def row(result: Result) -> str:
    anchor = result.page.partition("#")[2]
    page = f"[{anchor}](runbook.md#{anchor})"
    alert = f"`{result.alert}` ({result.severity})"
    if result.missing:
        return _cells([result.failure, alert, f"**not run**: {result.missing}", "", "", "", page, "", "", ""])
    if result.trouble:
        return _cells([result.failure, alert, f"**failed**: {result.trouble[:300]}", "", "", "", page, "", "", ""])
    return _cells(
        [
            result.failure,
            alert,
            f"{result.fired_seconds:.0f} s",
            duration(result.real_seconds),
            ", ".join(f"`{name}`" for name in result.others) or "none",
            result.health,
            page,
            f"{result.mended_seconds:.0f} s",
            f"{result.ended_seconds:.0f} s",
            f"{result.jobs:,}",
        ]
    )


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _cells(cells: Sequence[object]) -> str:
    return "| " + " | ".join(" ".join(str(cell).replace("|", "/").split()) for cell in cells) + " |"


def publish(text: str) -> None:
    DOCUMENT.write_text(put_into(DOCUMENT.read_text(), text))
