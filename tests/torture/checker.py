"""Says which promises were broken, and for which jobs: the ledger against what the system holds at the end.

Pure: it reads an Evidence and nothing else, so that it can be tried on forged ones. `quiet_ms` is how long nobody
has been at fault when the evidence is collected: what is overdue by more than that, is stuck.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from delaytasks.states import Outcome, State

from .evidence import Effect, Evidence, Happened, Row
from .ledger import Entry

LIVE = (State.DELAYED, State.RESERVED)
DID_NOTHING = ("refused", "rolled back")
OUTSIDE_ONLY = "torture.http"  # topics that begin so have consumers, which leave nothing in the database


class Violation(NamedTuple):
    kind: str
    topic: str
    key: str
    job: int | None
    why: str


@dataclass
class Told:
    """What a caller asked for and heard."""

    op: str
    asked_at: int
    answered_at: int | None
    said: str  # "broken" where no answer came
    due_ms: int | None

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
    events: list[Happened] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


def check(evidence: Evidence, *, quiet_ms: int = 15_000) -> list[Violation]:
    """Every violation, by kind: lost, early, effect twice, ran after cancelled, lost fence, stuck, drift, phantom."""
    stories, found = _stories(evidence)
    for story in stories.values():
        for kind, rule in RULES.items():
            found += [Violation(kind, story.topic, story.key, story.job, why) for why in rule(story)]
        found += [
            Violation("stuck", story.topic, story.key, story.job, why) for why in _stuck(story, evidence, quiet_ms)
        ]
    return found + list(_halves(evidence)) + list(_drift(evidence, stories))


# What is known of each job


def _stories(evidence: Evidence) -> tuple[dict[int, Story], list[Violation]]:
    stories: dict[int, Story] = {}

    def of(job: int) -> Story:
        return stories.setdefault(job, Story(job))

    for row in evidence.rows:
        story = of(row.id)
        story.row, story.topic, story.key = row, row.topic, row.key
    for event in evidence.events:
        of(event.job).events.append(event)
    for effect in evidence.effects:
        of(effect.job).effects.append(effect)
    for entry in evidence.entries:
        if entry["kind"] in ("begins", "outside"):
            story = of(entry["job"])
            (story.begun if entry["kind"] == "begins" else story.outside).append(entry)
            story.topic, story.key = story.topic or entry["topic"], story.key or entry.get("key", "")
    return stories, _tell(evidence, stories)


def _tell(evidence: Evidence, stories: dict[int, Story]) -> list[Violation]:
    """Hand each answer to its job's story. The violations: answers without a job, and jobs that nobody made."""
    found = []
    asked = {entry["n"]: entry for entry in evidence.entries if entry["kind"] == "asks"}
    answers = {entry["n"]: entry for entry in evidence.entries if entry["kind"] == "answers"}
    asked_for = {(entry["topic"], entry["key"]) for n, entry in asked.items() if _may_have_made(answers.get(n))}
    of_key = defaultdict(list)
    for story in stories.values():
        of_key[story.topic, story.key].append(story)
    for n, ask in asked.items():
        answer = answers.get(n, {"said": "broken", "at": None, "job": None})
        told = Told(ask["op"], ask["at"], answer["at"], answer["said"], answer.get("due_ms", ask.get("due_ms")))
        job = answer.get("job")
        if job is not None:
            story = stories.setdefault(job, Story(job, ask["topic"], ask["key"]))
            story.told.append(told)
        elif told.may_have_changed:
            for story in of_key[ask["topic"], ask["key"]]:
                story.told.append(told)
            if told.said == "scheduled" and not of_key[ask["topic"], ask["key"]]:
                found.append(Violation("lost", ask["topic"], ask["key"], None, "it was promised, and there is no row"))
    nobodys = [s for s in stories.values() if (s.topic, s.key) not in asked_for]
    return found + [Violation("phantom", s.topic, s.key, s.job, "nobody made this job") for s in nobodys]


def _may_have_made(answer: Entry | None) -> bool:
    return answer is None or answer["said"] not in DID_NOTHING


def _halves(evidence: Evidence) -> Iterator[Violation]:
    """What was asked for together and is there in part."""
    keys = {(row.topic, row.key) for row in evidence.rows}
    groups = defaultdict(list)
    for entry in evidence.entries:
        if entry["kind"] == "asks" and entry.get("group"):
            groups[entry["group"]].append((entry["topic"], entry["key"]))
    for asked in groups.values():
        missing = [one for one in asked if one not in keys]
        if missing and len(missing) < len(asked):
            topic, key = missing[0]
            yield Violation("lost", topic, key, None, f"{len(missing)} of {len(asked)} jobs of one call are not there")


# The promises, each a rule: the reasons why this job broke it


def _lost(story: Story) -> Iterator[str]:
    row, said = story.row, [told.said for told in story.told]
    if row is None:
        if "scheduled" in said:
            yield "it was promised, and there is no row"
        return
    happened = Counter(event.outcome for event in story.events)
    done = len(story.outside) if row.topic.startswith(OUTSIDE_ONLY) else len(story.effects)
    if row.state == State.FINISHED and not done:
        yield "it is finished, and its effect is not there"
    if row.state == State.FINISHED and not happened[Outcome.FINISHED]:
        yield "it is finished, and no event says so"
    if row.state == State.CANCELLED and not any(t.op == "cancel" and t.may_have_changed for t in story.told):
        yield "it is cancelled, and nobody asked for that"
    if row.state in LIVE and any(t.op == "cancel" and t.said == "cancelled" for t in story.told):
        yield "it was said to be cancelled, and it is live"


def _early(story: Story) -> Iterator[str]:
    for begin in story.begun:
        if begin["now_ms"] < begin["due_ms"]:
            yield f"attempt {begin['attempt']} began {begin['due_ms'] - begin['now_ms']} ms before what the row said"
    first = next((begin for begin in story.begun if begin["attempt"] == 1), None)
    if first is not None:
        due_ms = _earliest_due(story.told, before=first["at"])
        if due_ms is not None and first["now_ms"] < due_ms:
            yield f"it began {due_ms - first['now_ms']} ms before what its caller was told"
    for event in story.events:
        moved = any(e.outcome in (Outcome.RESCHEDULED, Outcome.RETRIED) for e in story.events)
        again = next((b for b in story.begun if b["attempt"] == event.attempt + 1), None)
        waited_for = event.outcome in (Outcome.FAILED, Outcome.SNOOZED) and event.next_due_ms
        if again and waited_for and not moved and again["now_ms"] < waited_for:
            yield f"attempt {again['attempt']} began {waited_for - again['now_ms']} ms before it was to be tried again"


def _earliest_due(told: list[Told], *, before: int) -> int | None:
    """The earliest due time that a job may have had at `before`, by what its callers asked and heard.

    The last change that was answered before anything later was asked holds, and with it whatever was under way.
    """
    made = [t for t in told if t.op != "cancel" and t.may_have_changed and t.asked_at < before]
    settled = [t for t in made if t.changed and t.answered_at is not None and t.answered_at < before]
    if not settled:
        return None  # it began before its caller heard of it: the row's own due time is the witness
    since = max(t.asked_at for t in settled)
    possible = [t.due_ms for t in made if t.answered_at is None or t.answered_at >= since]
    return None if None in possible else min(due for due in possible if due is not None)


def _effect_twice(story: Story) -> Iterator[str]:
    if len(story.effects) > 1:
        yield f"its effect is there {len(story.effects)} times, of attempts {[e.attempt for e in story.effects]}"


def _ran_after_cancelled(story: Story) -> Iterator[str]:
    said = [told for told in story.told if told.op == "cancel" and told.said == "cancelled" and told.answered_at]
    if not said:
        return
    answered_at = min(told.answered_at for told in said if told.answered_at)
    late = [begin["attempt"] for begin in story.begun if begin["at"] > answered_at]
    if late:
        yield f"attempts {late} began after its caller had heard that it was cancelled"
    if story.effects:
        yield "it was cancelled, and its effect is there"


def _lost_fence(story: Story) -> Iterator[str]:
    finished = [event.attempt for event in story.events if event.outcome == Outcome.FINISHED]
    if len(finished) > 1:
        yield f"it was finished by attempts {finished}"
    if story.row and finished and finished[-1] != story.row.attempt:
        yield f"attempt {finished[-1]} finished it after attempt {story.row.attempt} had begun"
    if finished and any(effect.attempt not in finished for effect in story.effects):
        yield f"attempt {finished} finished it, and an effect is of {[e.attempt for e in story.effects]}"
    holders = defaultdict(set)
    for begin in story.begun:
        holders[begin["attempt"]].add(begin["pid"])
    for attempt, pids in holders.items():
        if len(pids) > 1:
            yield f"attempt {attempt} was handed out to processes {sorted(pids)}"


RULES: dict[str, Callable[[Story], Iterator[str]]] = {
    "lost": _lost,
    "early": _early,
    "effect twice": _effect_twice,
    "ran after cancelled": _ran_after_cancelled,
    "lost fence": _lost_fence,
}
KINDS = (*RULES, "stuck", "drift", "phantom")


# What is still there


def _stuck(story: Story, evidence: Evidence, quiet_ms: int) -> Iterator[str]:
    row = story.row
    if row is None or row.state not in LIVE:
        return
    since_ms = row.lease_ms if row.state == State.RESERVED else row.due_ms
    if since_ms is not None and since_ms < evidence.now_ms - quiet_ms:
        what = "its lease ended" if row.state == State.RESERVED else "it was due"
        yield f"{what} {evidence.now_ms - since_ms} ms ago, and nobody looks at it"


def _drift(evidence: Evidence, stories: dict[int, Story]) -> Iterator[Violation]:
    if evidence.places is None:
        return
    places = defaultdict(list)
    for place in evidence.places:
        places[place.job].append(place)
    for job, found in places.items():
        row = stories[job].row if job in stories else None
        topic, key = (row.topic, row.key) if row else (found[0].topic, "")
        if len(found) > 1:
            yield Violation("drift", topic, key, job, f"it is in {len(found)} places of the mirror")
        if row is None or row.state not in LIVE:
            yield Violation("drift", topic, key, job, "the mirror holds it, and it is not live")
        elif not found[0].ready and found[0].score > _look_at_ms(row):
            yield Violation(
                "drift", topic, key, job, f"the mirror looks {found[0].score - _look_at_ms(row)} ms too late"
            )
    for story in stories.values():
        row = story.row
        if row is not None and row.state in LIVE and row.id not in places:
            yield Violation("drift", row.topic, row.key, row.id, "it is live, and the mirror does not hold it")


def _look_at_ms(row: Row) -> int:
    return row.lease_ms if row.state == State.RESERVED and row.lease_ms is not None else row.due_ms
