"""Live jobs that are stuck, wrong entries of the mirror, and jobs that no caller scheduled."""

from . import breach
from .forge import ENDS_MS, TTR_MS, Forge


@breach("stuck", "it was due 50000 ms ago, and it was not taken")
def overdue(forge: Forge) -> None:
    forge.pending(1, due=50_000)


@breach("stuck", "its lease ended 50000 ms ago, and it was not taken")
def an_ended_lease_that_is_not_taken_back(forge: Forge) -> None:
    forge.held(1, lease=50_000)


@breach("stuck", f"its lease is longer than its TTR of {TTR_MS} ms")
def a_lease_without_an_end(forge: Forge) -> None:
    forge.held(1, lease=ENDS_MS + 3_600_000)


@breach("drift", "it is in 2 places of the mirror")
def in_two_places(forge: Forge) -> None:
    forge.pending(1)
    forge.place(1, 500, ready=True)


@breach("drift", "it is in the mirror, but not live")
def an_ended_job_in_the_mirror(forge: Forge) -> None:
    forge.done(1)
    forge.place(1, 500)


@breach("drift", "it is in the mirror, but not live")
def an_entry_without_a_row(forge: Forge) -> None:
    forge.place(1, 500, ready=True)


@breach("drift", "the mirror has it under torture.slow")
def under_another_topic(forge: Forge) -> None:
    forge.pending(1)
    forge.evidence.places[-1].topic = "torture.slow"  # type: ignore[index]


@breach("drift", "its entry in the mirror is 500 ms too late")
def an_entry_that_is_too_late(forge: Forge) -> None:
    forge.pending(1)
    forge.evidence.places[-1].score += 500  # type: ignore[index]


@breach("drift", "its entry in the mirror is 3000 ms too late")
def an_entry_later_than_the_leases_end(forge: Forge) -> None:
    forge.held(1, lease=ENDS_MS + 1_000)
    forge.evidence.places[-1].score += 3_000  # type: ignore[index]


@breach("drift", "it is live, but not in the mirror")
def missing_in_the_mirror(forge: Forge) -> None:
    forge.pending(1)
    forge.evidence.places.pop()  # type: ignore[union-attr]


@breach("phantom", "no caller scheduled this job")
def a_row_that_no_caller_scheduled(forge: Forge) -> None:
    forge.finished(1)


@breach("phantom", "no caller scheduled this job")
def a_row_of_a_transaction_that_was_rolled_back(forge: Forge) -> None:
    forge.request("rolled back", 1, 0, "rolled back")
    forge.finished(1)


@breach("phantom", "no caller scheduled this job")
def a_row_of_an_unanswered_rolled_back_call(forge: Forge) -> None:
    forge.asks("rolled back", 1, 0)
    forge.finished(1)


@breach("phantom", "no caller scheduled this job")
def a_row_of_a_refused_call(forge: Forge) -> None:
    forge.answers(forge.asks("schedule", 1, 0), "refused", 2)
    forge.finished(1)


@breach("phantom", "no caller scheduled this job")
def a_row_that_was_only_moved(forge: Forge) -> None:
    forge.request("move", 1, 0, "moved", due=1_000)
    forge.finished(1)


@breach("phantom", "no caller scheduled this job", job=2)
def two_jobs_of_one_call(forge: Forge) -> None:
    forge.done(1)
    forge.finished(2)
    forge.evidence.rows[-1].key = "k1"
    next(e for e in forge.evidence.entries if e["kind"] == "begins" and e["job"] == 2)["key"] = "k1"
