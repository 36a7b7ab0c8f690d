"""Spikes ("herds"): minutes in which many more jobs fall due than in the minutes around them."""

from collections.abc import Sequence
from statistics import median

NEIGHBOURS = 15  # number of minutes before and after a minute with which it is compared
FACTOR = 10  # a spike has at least so many times the median of its neighbours
MIN_JOBS = 100  # minimum number of jobs in a spike


def herds(counts: Sequence[int]) -> list[int]:
    """Return the indexes of the minutes that are spikes. counts: the number of jobs due in each minute."""
    indexes = []
    for index, count in enumerate(counts):
        if count < MIN_JOBS:
            continue
        neighbours = [*counts[max(0, index - NEIGHBOURS) : index], *counts[index + 1 : index + 1 + NEIGHBOURS]]
        if count >= FACTOR * median(neighbours or [0]):
            indexes.append(index)
    return indexes
