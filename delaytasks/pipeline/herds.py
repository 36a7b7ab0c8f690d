"""A herd: many jobs that fall due in one minute, many times what is usual around it."""

from collections.abc import Sequence
from statistics import median

AROUND = 15  # minutes on each side
TIMES = 10  # what is usual
LEAST = 100  # jobs


def herds(numbers: Sequence[int]) -> list[int]:
    """The places in `numbers`, one for each minute, that are herds."""
    found = []
    for place, number in enumerate(numbers):
        if number < LEAST:
            continue
        around = [*numbers[max(0, place - AROUND) : place], *numbers[place + 1 : place + 1 + AROUND]]
        if number >= TIMES * median(around or [0]):
            found.append(place)
    return found
