"""Parse opening hours, such as {"mon-fri": "09:00-12:00,13:00-17:00"}."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..exceptions import BadCalendar, short_repr

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES_A_DAY = 1440
_WINDOW = re.compile(r"([0-2][0-9]):([0-5][0-9])-([0-2][0-9]):([0-5][0-9])", re.ASCII)


class Window(NamedTuple):
    """Open hours, in minutes after the midnight at which the day begins.

    `closes` is more than 1440 if the window ends on the next day.
    """

    opens: int
    closes: int

    def __str__(self) -> str:
        return "-".join(f"{m // 60:02}:{m % 60:02}" for m in (self.opens, self._shown_close))

    @property
    def _shown_close(self) -> int:
        return self.closes - MINUTES_A_DAY if self.closes > MINUTES_A_DAY else self.closes


Windows = tuple[Window, ...]


def parse_windows(text: str | Sequence[str]) -> Windows:
    """Return the windows of "09:00-12:00,13:00-17:00" or of a list of such texts, sorted. Raises BadCalendar.

    "" means closed. A window whose end is before its beginning, such as 22:00-06:00, ends on the next day.
    """
    texts = [text] if isinstance(text, str) else text
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        raise BadCalendar(f"Hours are {short_repr(text)}: give a text such as '09:00-17:00', or a list of such texts.")
    parts = [part.strip() for each in texts for part in each.split(",") if part.strip()]
    windows = tuple(sorted(map(_parse_window, parts)))
    for first, second in pairwise(windows):
        if second.opens < first.closes:
            raise BadCalendar(f"The hours {first} and {second} overlap: join them or correct one.")
    return windows


def _parse_window(text: str) -> Window:
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise BadCalendar(
            f"{short_repr(text)} is not a span of open hours: write HH:MM-HH:MM, for example 09:00-17:00."
        )
    hour, minute, end_hour, end_minute = map(int, match.groups())
    opens, closes = hour * 60 + minute, end_hour * 60 + end_minute
    if opens >= MINUTES_A_DAY or closes > MINUTES_A_DAY:
        raise BadCalendar(f"{text!r} is outside the day: times go from 00:00 to 24:00.")
    if opens == closes:
        raise BadCalendar(f"{text!r} is empty: for the whole day write 00:00-24:00, for a closed day ''.")
    return Window(opens, closes if closes > opens else closes + MINUTES_A_DAY)


def parse_week(hours: Mapping[str, str | Sequence[str]]) -> tuple[Windows, ...]:
    """Return the windows of the seven days from Monday on. Raises BadCalendar.

    hours   {days: windows}: days are "mon", a range "mon-fri" or a list "mon,wed"; other days are closed
    """
    if not isinstance(hours, Mapping):
        raise BadCalendar(f"hours is {short_repr(hours)}: give a dict such as {{'mon-fri': '09:00-17:00'}}.")
    week: dict[str, Windows] = {}
    for days, windows in hours.items():
        for day in _parse_days(days):
            if day in week:
                raise BadCalendar(f"hours has {day!r} twice, the second time in {days!r}: name each day once.")
            week[day] = parse_windows(windows)
    if not any(week.values()):
        raise BadCalendar("hours has no open hour: give at least one, for example {'mon-fri': '09:00-17:00'}.")
    return tuple(week.get(day, ()) for day in DAYS)


def _parse_days(text: object) -> Iterator[str]:
    if not isinstance(text, str):
        raise BadCalendar(f"{short_repr(text)} is not a day: use {', '.join(DAYS)}, or a range such as 'mon-fri'.")
    for part in text.lower().split(","):
        first, _, last = (name.strip() for name in part.partition("-"))
        last = last or first
        if first not in DAYS or last not in DAYS or DAYS.index(last) < DAYS.index(first):
            raise BadCalendar(
                f"{part.strip()!r} in hours is not a day or a range of days: use {', '.join(DAYS)}, "
                "or a range from an earlier to a later one, such as 'mon-fri'."
            )
        yield from DAYS[DAYS.index(first) : DAYS.index(last) + 1]
