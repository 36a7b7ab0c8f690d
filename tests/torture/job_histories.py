"""Ledger entries, rows, events and effects, grouped by job for the checker's rules."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .evidence import Effect, Evidence, Happened, Row
from .ledger import Entry

ROUNDING_NS = 10_000_000  # the database's clock has whole ms and may drift a little from the ledger's
READING_MS = 1_000  # tolerance: the two clocks are read one after the other on a busy machine


class Violation(NamedTuple):
    kind: str
    topic: str
    key: str
    job: int | None
    why: str


@dataclass
class Request:
    """A caller's request and its answer. Times in ns by the ledger's clock."""

    op: str
    asked_at: int
    answered_at: int | None
    said: str  # "broken" if no answer came
    due_ms: int | None
    why: str = ""
    not_before: int | None = None  # request time plus the requested delay; see Evidence.jumped()

    @property
    def changed(self) -> bool:
        """Whether it certainly took effect."""
        return self.said in ("scheduled", "moved", "cancelled")

    @property
    def may_have_changed(self) -> bool:
        return self.changed or self.said == "broken"


@dataclass
class Receipt:
    """A message that a target received. Times in ns by the ledger's clock."""

    at: int
    confirmed_at: int | None  # None: not at all


@dataclass
class JobHistory:
    """Everything known about one job."""

    job: int
    topic: str = ""
    key: str = ""
    row: Row | None = None
    requests: list[Request] = field(default_factory=list)
    begun: list[Entry] = field(default_factory=list)
    outside: list[Entry] = field(default_factory=list)
    finishes: list[Entry] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    events: list[Happened] = field(default_factory=list)  # in chronological order
    effects: list[Effect] = field(default_factory=list)

    def name(self, topic: str, key: str) -> None:
        self.topic, self.key = self.topic or topic, self.key or key

    def breach(self, kind: str, why: str) -> Violation:
        return Violation(kind, self.topic, self.key, self.job, why)


def read(evidence: Evidence) -> tuple[dict[int, JobHistory], list[Violation]]:
    """Return the histories by job, and violations that belong to none: lost and phantom jobs."""
    histories: dict[int, JobHistory] = {}
    _add_rows_and_effects(evidence, histories)
    _add_handler_entries(evidence, histories)
    of_key = defaultdict(list)
    for history in histories.values():
        of_key[history.topic, history.key].append(history)
    lost = list(_add_requests(evidence, histories, of_key))
    wrong = list(_add_receipts(evidence, histories, of_key))
    return histories, [*lost, *wrong, *_phantoms(evidence, of_key)]


def _add_rows_and_effects(evidence: Evidence, histories: dict[int, JobHistory]) -> None:
    for row in evidence.rows:
        history = histories.setdefault(row.id, JobHistory(row.id))
        history.row, history.topic, history.key = row, row.topic, row.key
    for event in evidence.events:
        histories.setdefault(event.job, JobHistory(event.job)).events.append(event)
    for effect in evidence.effects:
        histories.setdefault(effect.job, JobHistory(effect.job)).effects.append(effect)


def _add_handler_entries(evidence: Evidence, histories: dict[int, JobHistory]) -> None:
    for entry in evidence.entries:
        if entry["kind"] not in ("begins", "outside", "finishes"):
            continue
        history = histories.setdefault(entry["job"], JobHistory(entry["job"]))
        history.name(entry.get("topic", ""), entry.get("key", ""))
        lists = {"begins": history.begun, "outside": history.outside, "finishes": history.finishes}
        lists[entry["kind"]].append(entry)


def _add_requests(
    evidence: Evidence, histories: dict[int, JobHistory], of_key: dict[tuple[str, str], list[JobHistory]]
) -> Iterator[Violation]:
    """Add each request to its job's history, or to all jobs with its key if no job is named. Yield lost jobs."""
    answers = _answers(evidence)
    for ask in _requests(evidence):
        answer = answers.get(ask["n"])
        request, job = _request(ask, answer, evidence), None if answer is None else answer.get("job")
        if job is not None:
            history = histories.setdefault(job, JobHistory(job))
            history.name(ask["topic"], ask["key"])
            history.requests.append(request)
        elif request.may_have_changed:
            candidates = of_key.get((ask["topic"], ask["key"]), [])
            for history in candidates:
                history.requests.append(request)
            if request.said == "scheduled" and not candidates:
                yield Violation("lost", ask["topic"], ask["key"], None, "it was scheduled, but there is no row")


def _add_receipts(
    evidence: Evidence, histories: dict[int, JobHistory], of_key: dict[tuple[str, str], list[JobHistory]]
) -> Iterator[Violation]:
    """Add each message that a target received to the job of its id. Yield messages of another id or of no job."""
    confirmed: dict[str, int] = {}
    for entry in evidence.entries:
        if entry["kind"] == "confirms":
            confirmed.setdefault(entry["n"], entry["at"])
    for entry in evidence.entries:
        if entry["kind"] != "received":
            continue
        topic, key = entry["topic"], entry["key"]
        candidates = {str(history.job): history for history in of_key.get((topic, key), [])}
        if entry["id"] in candidates:
            candidates[entry["id"]].receipts.append(Receipt(entry["at"], confirmed.get(entry["n"])))
        elif candidates:
            job = min(history.job for history in candidates.values())
            yield Violation("wrong id", topic, key, job, f"its target received its message with the id {entry['id']}")
        else:
            yield Violation("phantom", topic, key, None, "its target received a message, but there is no job")


def _request(ask: Entry, answer: Entry | None, evidence: Evidence) -> Request:
    delay_ms = None if ask["op"] == "run now" else ask.get("delay_ms")  # which leaves an earlier due time as it is
    until = evidence.at if answer is None else answer["at"]
    not_before = None if delay_ms is None else evidence.earliest_jumped(ask["at"], until) + delay_ms * 1_000_000
    if answer is None:
        return Request(ask["op"], ask["at"], None, "broken", None, not_before=not_before)
    due_ms = answer.get("due_ms", ask.get("due_ms"))
    return Request(ask["op"], ask["at"], answer["at"], answer["said"], due_ms, answer.get("why", ""), not_before)


def _requests(evidence: Evidence) -> list[Entry]:
    return [entry for entry in evidence.entries if entry["kind"] == "asks"]


def _answers(evidence: Evidence) -> dict[str, Entry]:
    return {entry["n"]: entry for entry in evidence.entries if entry["kind"] == "answers"}


def _phantoms(evidence: Evidence, of_key: dict[tuple[str, str], list[JobHistory]]) -> Iterator[Violation]:
    """Find jobs beyond the number scheduled for their key. A rolled-back call schedules none."""
    answers = _answers(evidence)
    scheduled: dict[tuple[str, str], int] = defaultdict(int)
    for ask in _requests(evidence):
        said = answers[ask["n"]]["said"] if ask["n"] in answers else "broken"
        if ask["op"] == "schedule" and said in ("scheduled", "broken"):
            scheduled[ask["topic"], ask["key"]] += 1
    for pair, histories in of_key.items():
        for history in sorted(histories, key=lambda history: history.job)[scheduled[pair] :]:
            yield history.breach("phantom", "no caller scheduled this job")


def database_ms(at: int, evidence: Evidence) -> int:
    """Return a time of the ledger by the database's clock."""
    return evidence.now_ms - (evidence.jumped(evidence.at) - evidence.jumped(at)) // 1_000_000


def earliest(requests: list[Request], before: int, of: Callable[[Request], int | None], *, known: bool) -> int | None:
    """Return the earliest value that may have been valid at `before`; None if it is unknown.

    known   return None if no change was answered by then; the row's own due time is checked instead

    Valid are the last change that was answered before any later request, and all requests still under way.
    """
    made = [t for t in requests if t.op != "cancel" and t.may_have_changed and t.asked_at < before]
    settled = [t for t in made if t.changed and t.answered_at is not None and t.answered_at < before]
    if known and not settled:
        return None
    since = max((t.asked_at for t in settled), default=0)
    possible = [of(t) for t in made if t.answered_at is None or t.answered_at >= since]
    return None if None in possible else min((each for each in possible if each is not None), default=None)
