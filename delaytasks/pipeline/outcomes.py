"""What is counted of events, and the shares whose lateness is told: the same in Spark and without it."""

from ..states import Outcome

SHARES = {"late_p50_ms": 0.5, "late_p95_ms": 0.95, "late_p99_ms": 0.99}
RETRIED = (Outcome.FAILED, Outcome.EXPIRED)
OUTCOMES = {  # column -> what it counts
    "finished": (Outcome.FINISHED,), "retried": RETRIED, "died": (Outcome.DEAD,),
    "cancelled": (Outcome.CANCELLED,), "snoozed": (Outcome.SNOOZED,),
}  # fmt: skip
SUMS = ("happened", *OUTCOMES)
