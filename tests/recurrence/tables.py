"""Read the tables of data/, and follow the times of a schedule."""

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from delaytasks.recurrence.intervals import Times
from delaytasks.recurrence.wall_times import Firing

DATA = Path(__file__).parent / "data"


def rows(name: str) -> list[list[str]]:
    """Return the rows of a table, without comments."""
    lines = (DATA / name).read_text().splitlines()
    return [[cell.strip() for cell in line.split(" | ")] for line in lines if line and not line.startswith("#")]


def ours(expected: str) -> str:
    """Return the value after "but", without its reason, or the only value."""
    return (expected.partition(" but ")[2] or expected).partition(" (")[0]


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def follow(times: Times, after: datetime, count: int) -> list[Firing]:
    """Return the next firings, at most `count`."""
    found: list[Firing] = []
    while len(found) < count and (firing := times.next_after(found[-1].due if found else after)) is not None:
        found.append(firing)
    return found


def local(firings: list[Firing], zone: str) -> list[str]:
    """Return the instants as what clocks in the zone show, with their offsets."""
    return [firing.due.astimezone(ZoneInfo(zone)).isoformat() for firing in firings]
