"""Rules for jobs that are forwarded: compare what became of them with what their targets recorded.

A target records a message before it confirms it. What reads the queues of a real broker sees a message later than the
broker had it, and no confirmation: those topics are not judged by when a message came.
"""

from collections.abc import Iterator

from delaytasks.states import LIVE, Outcome, State

from .constants import FORWARDED, PEERS
from .evidence import Evidence, Happened
from .job_histories import READING_MS, ROUNDING_NS, JobHistory, Receipt, Violation, database_ms, earliest

PEER_TOPICS = {FORWARDED + name for name in PEERS}
CHARGES = FORWARDED + "webhook"  # no answer in time is a failure of the attempt: the message may be the reason
RESUMES_MS = 40_000  # after its due time, a job of a topic that was held for a few seconds must have ended


def breaches(history: JobHistory, evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the kind and the reason of each breach of a forwarded job."""
    if not history.topic.startswith(FORWARDED):
        return
    yield from (("charged", why) for why in _charged(history, evidence))
    yield from (("stuck", why) for why in _stuck(history, evidence))
    if history.topic in PEER_TOPICS:
        yield from (("early", why) for why in _early(history, evidence))
        yield from (("ran after cancelled", why) for why in _received_after_cancelled(history))
        yield from (("unconfirmed", why) for why in _unconfirmed(history, evidence))


def _early(history: JobHistory, evidence: Evidence) -> Iterator[str]:
    for receipt in history.receipts:
        not_before = earliest(history.requests, receipt.at, lambda request: request.not_before, known=False)
        received = evidence.jumped(receipt.at)
        if not_before is not None and received < not_before - ROUNDING_NS:
            early_ms = round((not_before - received) / 1e6)
            yield f"its target received it {early_ms} ms before the requested delay was over"


def _received_after_cancelled(history: JobHistory) -> Iterator[str]:
    answers = [r.answered_at for r in history.requests if r.said == "cancelled" and r.answered_at is not None]
    last = max((receipt.at for receipt in history.receipts), default=None)
    if answers and last is not None and last > min(answers) + READING_MS * 1_000_000:
        late_ms = round((last - min(answers)) / 1e6)
        yield f"its target received it {late_ms} ms after its caller was told that it was cancelled"


def _unconfirmed(history: JobHistory, evidence: Evidence) -> Iterator[str]:
    """Check that the message of the attempt that finished it was confirmed, and no other one instead."""
    for event in history.events:
        if event.outcome == Outcome.FINISHED and history.receipts:
            those = _of_attempt(history, event, evidence)
            if not any(_confirmed_within(receipt, event, evidence) for receipt in those):
                yield f"attempt {event.attempt} finished it, but its target had not confirmed a message of that attempt"


def _charged(history: JobHistory, evidence: Evidence) -> Iterator[str]:
    refused_before = False  # then it is charged if it is refused again while others are confirmed
    for event in history.events:
        refused_before = refused_before or event.outcome == Outcome.SNOOZED
        if event.outcome not in (Outcome.FAILED, Outcome.EXPIRED):
            continue
        taken = _of_attempt(history, event, evidence)
        unanswered = taken and not any(_confirmed_within(receipt, event, evidence, slack_ms=0) for receipt in taken)
        if event.outcome == Outcome.FAILED and refused_before:
            continue
        if event.outcome == Outcome.EXPIRED or history.topic != CHARGES or not unanswered:
            yield f"attempt {event.attempt} was charged a failure, although the job was not the reason"


def _of_attempt(history: JobHistory, event: Happened, evidence: Evidence) -> list[Receipt]:
    """Return the receipts of messages that this attempt may have sent."""
    from_ms, to_ms = (event.reserved_ms or 0) - READING_MS, event.done_ms + READING_MS
    return [receipt for receipt in history.receipts if from_ms <= database_ms(receipt.at, evidence) <= to_ms]


def _confirmed_within(receipt: Receipt, event: Happened, evidence: Evidence, *, slack_ms: int = READING_MS) -> bool:
    if receipt.confirmed_at is None:
        return False
    return database_ms(receipt.confirmed_at, evidence) <= event.done_ms + slack_ms


def _stuck(history: JobHistory, evidence: Evidence) -> Iterator[str]:
    """A job that goes back is due later each time, and so is never overdue."""
    row = history.row
    if row is None or row.state not in LIVE or not any(e.outcome == Outcome.SNOOZED for e in history.events):
        return
    first_due_ms = min(event.due_ms for event in history.events if event.outcome == Outcome.SNOOZED)
    if row.state != State.RESERVED and first_due_ms < evidence.now_ms - RESUMES_MS:
        yield f"its topic was held, and {evidence.now_ms - first_due_ms} ms after its due time it has not ended"


def held_for_nothing(evidence: Evidence, known: dict[int, JobHistory]) -> Iterator[Violation]:
    """Find topics that are held although a job was finished later."""
    for hold in evidence.holds:
        for history in known.values():
            if history.topic == hold.topic and any(
                event.outcome == Outcome.FINISHED and event.done_ms > hold.since_ms + READING_MS
                for event in history.events
            ):
                yield history.breach("stuck", f"its target confirmed it, but the topic is still held: {hold.why}")
                break
