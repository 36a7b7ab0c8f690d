"""The outcomes that are counted and the percentiles of lateness that are computed, with Spark and without it."""

from ...states import Outcome

PERCENTILES = {"late_p50_ms": 0.5, "late_p95_ms": 0.95, "late_p99_ms": 0.99}
RETRIED = (Outcome.FAILED, Outcome.EXPIRED)
OUTCOME_COLUMNS = {  # column -> outcomes counted in it
    "finished": (Outcome.FINISHED,), "retried": RETRIED, "died": (Outcome.DEAD,),
    "cancelled": (Outcome.CANCELLED, Outcome.SKIPPED), "snoozed": (Outcome.SNOOZED,),
}  # fmt: skip
SUM_COLUMNS = ("happened", *OUTCOME_COLUMNS)
