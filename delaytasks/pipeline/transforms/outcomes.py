"""Which outcomes and percentiles of lateness the statistics have. Used with Spark and without it."""

from collections.abc import Iterable

from ...states import Outcome

PERCENTILES = {"late_p50_ms": 0.5, "late_p95_ms": 0.95, "late_p99_ms": 0.99}
RETRIED = (Outcome.FAILED, Outcome.EXPIRED)
OUTCOME_COLUMNS = {  # column -> outcomes counted in it
    "finished": (Outcome.FINISHED,), "retried": RETRIED, "died": (Outcome.DEAD,),
    "cancelled": (Outcome.CANCELLED, Outcome.SKIPPED), "snoozed": (Outcome.SNOOZED,),
}  # fmt: skip
SUM_COLUMNS = ("happened", *OUTCOME_COLUMNS)


def percentile(histogram: Iterable[tuple[int, int]], threshold: float) -> int | None:
    """Return the first duration at which the cumulative count reaches the threshold; None if the histogram is empty.

    histogram   (duration in milliseconds, number of attempts), sorted
    threshold   a number of attempts, such as 0.95 times the number of all
    """
    cumulative = 0
    for ms, number in histogram:
        cumulative += number
        if cumulative >= threshold:
            return ms
    return None
