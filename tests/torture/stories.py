"""Ledger, rows, events and effects, put together job by job: what the checker's rules read."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .evidence import Effect, Evidence, Happened, Row
from .ledger import Entry


class Violation(NamedTuple):
    kind: str
    topic: str
    key: str
    job: int | None
    why: str


@dataclass
class Told:
    """What a caller asked for and heard. Times in ns by the ledger's clock."""

    op: str
    asked_at: int
    answered_at: int | None
    said: str  # "broken" where no answer came
    due_ms: int | None
    why: str = ""
    not_before: int | None = None  # it asked for a delay: by no clock can the job begin before this

    @property
    def changed(self) -> bool:
        """It certainly took effect."""
        return self.said in ("scheduled", "moved", "cancelled")

    @property
    def may_have_changed(self) -> bool:
        return self.changed or self.said == "broken"


@dataclass
class Story:
    """All that is known of one job."""

    job: int
    topic: str = ""
    key: str = ""
    row: Row | None = None
    told: list[Told] = field(default_factory=list)
    begun: list[Entry] = field(default_factory=list)
    outside: list[Entry] = field(default_factory=list)
    finishes: list[Entry] = field(default_factory=list)
    events: list[Happened] = field(default_factory=list)  # in the order in which they happened
    effects: list[Effect] = field(default_factory=list)

    def name(self, topic: str, key: str) -> None:
        self.topic, self.key = self.topic or topic, self.key or key

    def breach(self, kind: str, why: str) -> Violation:
        return Violation(kind, self.topic, self.key, self.job, why)


def read(evidence: Evidence) -> tuple[dict[int, Story], list[Violation]]:
    """The stories by job. The violations are what no story can tell: promises without a job, jobs without a promise."""
    stories: dict[int, Story] = {}
    _hear_the_system(evidence, stories)
    _hear_the_handlers(evidence, stories)
    of_key = defaultdict(list)
    for story in stories.values():
        of_key[story.topic, story.key].append(story)
    lost = list(_hear_the_callers(evidence, stories, of_key))
    return stories, [*lost, *_phantoms(evidence, of_key)]


def _hear_the_system(evidence: Evidence, stories: dict[int, Story]) -> None:
    for row in evidence.rows:
        story = stories.setdefault(row.id, Story(row.id))
        story.row, story.topic, story.key = row, row.topic, row.key
    for event in evidence.events:
        stories.setdefault(event.job, Story(event.job)).events.append(event)
    for effect in evidence.effects:
        stories.setdefault(effect.job, Story(effect.job)).effects.append(effect)


def _hear_the_handlers(evidence: Evidence, stories: dict[int, Story]) -> None:
    for entry in evidence.entries:
        if entry["kind"] not in ("begins", "outside", "finishes"):
            continue
        story = stories.setdefault(entry["job"], Story(entry["job"]))
        story.name(entry.get("topic", ""), entry.get("key", ""))
        heard = {"begins": story.begun, "outside": story.outside, "finishes": story.finishes}
        heard[entry["kind"]].append(entry)


def _hear_the_callers(
    evidence: Evidence, stories: dict[int, Story], of_key: dict[tuple[str, str], list[Story]]
) -> Iterator[Violation]:
    """Hand each answer to its job's story; one that names no job, to all that have its key. Promises without a job."""
    answers = _answers(evidence)
    for ask in _asked(evidence):
        answer = answers.get(ask["n"])
        told, job = _told(ask, answer), None if answer is None else answer.get("job")
        if job is not None:
            story = stories.setdefault(job, Story(job))
            story.name(ask["topic"], ask["key"])
            story.told.append(told)
        elif told.may_have_changed:
            there = of_key.get((ask["topic"], ask["key"]), [])
            for story in there:
                story.told.append(told)
            if told.said == "scheduled" and not there:
                yield Violation("lost", ask["topic"], ask["key"], None, "it was promised, and there is no row")


def _told(ask: Entry, answer: Entry | None) -> Told:
    not_before = None if ask.get("delay_ms") is None else ask["at"] + ask["delay_ms"] * 1_000_000
    if answer is None:
        return Told(ask["op"], ask["at"], None, "broken", None, not_before=not_before)
    due_ms = answer.get("due_ms", ask.get("due_ms"))
    return Told(ask["op"], ask["at"], answer["at"], answer["said"], due_ms, answer.get("why", ""), not_before)


def _asked(evidence: Evidence) -> list[Entry]:
    return [entry for entry in evidence.entries if entry["kind"] == "asks"]


def _answers(evidence: Evidence) -> dict[str, Entry]:
    return {entry["n"]: entry for entry in evidence.entries if entry["kind"] == "answers"}


def _phantoms(evidence: Evidence, of_key: dict[tuple[str, str], list[Story]]) -> Iterator[Violation]:
    """Jobs that nobody made, or more than were asked for. A caller that rolls back makes none, answered or not."""
    answers = _answers(evidence)
    makers: dict[tuple[str, str], int] = defaultdict(int)
    for ask in _asked(evidence):
        said = answers[ask["n"]]["said"] if ask["n"] in answers else "broken"
        if ask["op"] == "schedule" and said in ("scheduled", "broken"):
            makers[ask["topic"], ask["key"]] += 1
    for pair, stories in of_key.items():
        for story in sorted(stories, key=lambda story: story.job)[makers[pair] :]:
            yield story.breach("phantom", "nobody made this job")
