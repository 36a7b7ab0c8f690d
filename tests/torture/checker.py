"""Says which promises were broken, and for which jobs: the ledger against what the system holds at the end.

Pure: it reads an Evidence and nothing else, so that it can be tried on forged ones. Each rule is a promise, and
yields the reasons why a job broke it:

lost                  promised, and neither ended as it should nor live
early                 begun before its due time: by the database's clock, and by one that nobody sets
effect twice          the effect in the database is there more than once
ran after cancelled   its caller heard "cancelled", and something of it happened all the same
lost fence            two attempts held it, or ended it, or one that did not end it left its effect
untrue answer         what its caller heard cannot have been so
stuck                 live, overdue for longer than it has been quiet, and nobody looks at it
drift                 the mirror and the rows disagree. An entry that is too early is none: it costs a refused claim
phantom               a job that nobody made
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from delaytasks.states import Outcome, State

from . import stories
from .evidence import Evidence, Place, Row
from .ledger import Entry
from .stories import Story, Told, Violation
from .terms import most_attempts

LIVE = (State.DELAYED, State.RESERVED)
OUTSIDE_ONLY = "torture.http"  # topics that begin so have consumers, which leave nothing in the database
ENDS_ATTEMPT = (  # each attempt has exactly one event of these, unless it still holds its job
    Outcome.FINISHED, Outcome.FAILED, Outcome.SNOOZED, Outcome.RELEASED, Outcome.EXPIRED, Outcome.DEAD,
)  # fmt: skip
ROUNDING_NS = 10_000_000  # the database's clock counts whole ms, and may be slewed a little against the ledger's
READING_MS = 1_000  # the two clocks are read one after the other, and the machine is busy


def check(evidence: Evidence, *, quiet_ms: int = 15_000) -> list[Violation]:
    """Every violation. `quiet_ms` is how long nobody has been at fault: what is overdue by more than that, is stuck."""
    known, found = stories.read(evidence)
    for story in known.values():
        for kind, rule in RULES.items():
            found += [story.breach(kind, why) for why in rule(story)]
        found += [story.breach("untrue answer", why) for why in _untrue_answer(story, evidence)]
        found += [story.breach("stuck", why) for why in _stuck(story, evidence, quiet_ms)]
    return found + list(_halves(evidence)) + list(_drift(evidence, known, quiet_ms))


# Lost


def _lost(story: Story) -> Iterator[str]:
    row = story.row
    if row is None:
        if story.begun or story.effects or any(told.said == "scheduled" for told in story.told):
            yield "it was promised, and there is no row"
        return
    if row.state == State.FINISHED:
        yield from _finished_for_nothing(story, row)
    elif story.finishes:
        yield f"its consumer heard that it had finished it, and it is {State(row.state).word}"
    if row.state == State.CANCELLED and not any(t.op == "cancel" and t.may_have_changed for t in story.told):
        yield "it is cancelled, and nobody asked for that"
    if row.state == State.DEAD and row.failures < most_attempts(row.topic):
        yield f"it is dead after {row.failures} failures of {most_attempts(row.topic)}"
    failed = sum(event.outcome in (Outcome.FAILED, Outcome.EXPIRED, Outcome.DEAD) for event in story.events)
    if row.failures > failed:
        yield f"{row.failures} failures are held against it, and {failed} events say so"


def _finished_for_nothing(story: Story, row: Row) -> Iterator[str]:
    """It is finished: is there what finishing it stands for?"""
    if not (story.outside if row.topic.startswith(OUTSIDE_ONLY) else story.effects):
        yield "it is finished, and its effect is not there"
    if not any(event.outcome == Outcome.FINISHED for event in story.events):
        yield "it is finished, and no event says so"
    elif not any(begin["attempt"] == row.attempt for begin in story.begun):
        yield f"attempt {row.attempt} finished it, and nobody saw it begin"


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


# Early


def _early(story: Story) -> Iterator[str]:
    for begin in story.begun:
        if begin["now_ms"] < begin["due_ms"]:
            yield f"attempt {begin['attempt']} began {begin['due_ms'] - begin['now_ms']} ms before what the row said"
        yield from _before_it_was_told(story.told, begin)
        waited_for = _waited_for(story, begin["attempt"])
        if waited_for is not None and begin["now_ms"] < waited_for:
            yield f"attempt {begin['attempt']} began {waited_for - begin['now_ms']} ms before it was to be tried again"
    for event in story.events:
        if event.outcome in ENDS_ATTEMPT and event.reserved_ms is not None and event.reserved_ms < event.due_ms:
            yield f"attempt {event.attempt} was reserved {event.due_ms - event.reserved_ms} ms before its due time"


def _waited_for(story: Story, attempt: int) -> int | None:
    """When the job was due that this attempt reserved, by the last event before it."""
    before = [event for event in story.events if event.attempt == attempt - 1 and event.next_due_ms is not None]
    return before[-1].next_due_ms if before else None


def _before_it_was_told(told: list[Told], begin: Entry) -> Iterator[str]:
    """By the due times that its callers heard, and by the delays that they asked for."""
    due_ms = _earliest(told, begin["at"], lambda t: t.due_ms, known=True)
    if due_ms is not None and begin["now_ms"] < due_ms:
        yield f"attempt {begin['attempt']} began {due_ms - begin['now_ms']} ms before what its caller was told"
    not_before = _earliest(told, begin["at"], lambda t: t.not_before, known=False)
    if not_before is not None and begin["at"] < not_before - ROUNDING_NS:
        early_ms = (not_before - begin["at"]) / 1e6
        yield f"attempt {begin['attempt']} began {early_ms:.0f} ms before the delay that was asked for was over"


def _earliest(told: list[Told], before: int, of: Callable[[Told], int | None], *, known: bool) -> int | None:
    """The earliest of what may have held at `before`, by what callers asked and heard. None: nobody can say.

    known   only if one of them was answered by then; otherwise the row's own due time is the witness

    The last change that was answered before anything later was asked holds, and with it whatever was under way.
    """
    made = [t for t in told if t.op != "cancel" and t.may_have_changed and t.asked_at < before]
    settled = [t for t in made if t.changed and t.answered_at is not None and t.answered_at < before]
    if known and not settled:
        return None
    since = max((t.asked_at for t in settled), default=0)
    possible = [of(t) for t in made if t.answered_at is None or t.answered_at >= since]
    return None if None in possible else min((each for each in possible if each is not None), default=None)


# Once, and by whom


def _effect_twice(story: Story) -> Iterator[str]:
    if len(story.effects) > 1:
        yield f"its effect is there {len(story.effects)} times, of attempts {[e.attempt for e in story.effects]}"


def _ran_after_cancelled(story: Story) -> Iterator[str]:
    row = story.row
    cancelled = [event.attempt for event in story.events if event.outcome == Outcome.CANCELLED]
    said = [told.answered_at for told in story.told if told.said == "cancelled" and told.answered_at is not None]
    if row and row.state != State.CANCELLED and (said or cancelled):
        who = "its caller heard that it was cancelled" if said else "an event says that it was cancelled"
        yield f"{who}, and it is {State(row.state).word}"
    heard_at, last = min(said, default=None), min(cancelled, default=None)
    late = [
        begin["attempt"]
        for begin in story.begun
        if (heard_at is not None and begin["at"] > heard_at) or (last is not None and begin["attempt"] > last)
    ]
    if late:
        yield f"attempts {late} began after it was cancelled"
    if story.effects and (said or cancelled or (row and row.state == State.CANCELLED)):
        yield "it was cancelled, and its effect is there"
    if row and row.state == State.CANCELLED and not cancelled:
        yield "it is cancelled, and no event says when"


def _lost_fence(story: Story) -> Iterator[str]:
    finished = [event.attempt for event in story.events if event.outcome == Outcome.FINISHED]
    heard = {finish["attempt"] for finish in story.finishes}
    if len(finished) > 1:
        yield f"it was finished by attempts {finished}"
    if finished and heard - set(finished):
        yield f"consumers heard that attempts {sorted(heard)} finished it; the events say {finished}"
    if story.row and finished and story.row.state != State.FINISHED:
        yield f"attempt {finished[-1]} finished it, and it is {State(story.row.state).word}"
    if story.row and finished and finished[-1] != story.row.attempt:
        yield f"attempt {finished[-1]} finished it after attempt {story.row.attempt} had begun"
    strangers = [effect.attempt for effect in story.effects if effect.attempt not in finished]
    if strangers and not (story.row and story.row.state == State.CANCELLED):
        yield f"there is an effect of attempts {strangers}, and attempts {finished} finished it"
    yield from _two_holders(story)
    yield from _attempts_without_an_end(story)


def _two_holders(story: Story) -> Iterator[str]:
    """A worker may begin an attempt again, after a conflict or out of a batch that failed; nobody else may."""
    holders = defaultdict(list)
    for begin in story.begun:
        holders[begin["attempt"]].append(f"{begin['pid']}/{begin['thread']}")
    for attempt, threads in holders.items():
        if len(set(threads)) > 1:
            yield f"attempt {attempt} was handed out to {' and '.join(sorted(set(threads)))}"
        elif len(threads) > 1 and story.topic.startswith(OUTSIDE_ONLY):
            yield f"attempt {attempt} was handed out {len(threads)} times"
    known = story.row.attempt if story.row else None
    if known is not None and holders and max(holders) > known:
        yield f"attempt {max(holders)} began, and the row knows of {known}"


def _attempts_without_an_end(story: Story) -> Iterator[str]:
    row = story.row
    if row is None:
        return
    ends = Counter(event.attempt for event in story.events if event.outcome in ENDS_ATTEMPT)
    twice = [attempt for attempt, times in sorted(ends.items()) if times > 1]
    if twice:
        yield f"attempts {twice} ended more than once"
    held = {row.attempt} if row.state == State.RESERVED else set()
    open_ended = set(range(1, row.attempt + 1)) - ends.keys() - held
    if open_ended:
        yield f"attempts {sorted(open_ended)} were reserved, and no event says how they ended"
    if held & ends.keys():
        yield f"attempt {row.attempt} has ended, and still holds it"


RULES: dict[str, Callable[[Story], Iterator[str]]] = {
    "lost": _lost,
    "early": _early,
    "effect twice": _effect_twice,
    "ran after cancelled": _ran_after_cancelled,
    "lost fence": _lost_fence,
}
KINDS = (*RULES, "untrue answer", "stuck", "drift", "phantom")


# What callers heard


def _untrue_answer(story: Story, evidence: Evidence) -> Iterator[str]:
    row = story.row
    if row is None:
        return
    for told in story.told:
        heard = f"its caller heard {told.why or told.said!r}"
        if told.said == "unknown":
            yield f"{heard}, and there is a row"
        elif told.said == "already finished" or told.why == "NotLive":
            ended = (State.FINISHED, State.DEAD) if told.said == "already finished" else tuple(set(State) - set(LIVE))
            if row.state not in ended:
                yield f"{heard}, and it is {State(row.state).word}"
        elif (told.said == "running" or told.why == "Reserved") and not _was_reserved(story, row, told, evidence):
            yield f"{heard}, and nobody held it at that time"
    yield from _moved_in_vain(story, row)


def _moved_in_vain(story: Story, row: Row) -> Iterator[str]:
    """The first attempt is for the due time that was heard last, where it is certain which that was."""
    first = next((begin for begin in story.begun if begin["attempt"] == 1), None)
    if first is None and (row.attempt or row.state != State.DELAYED):
        return
    until = None if first is None else first["at"]
    made = [t for t in story.told if t.op != "cancel" and t.may_have_changed and (until is None or t.asked_at < until)]
    if not made or not all(t.changed and t.answered_at and (until is None or t.answered_at < until) for t in made):
        return
    heard_ms = max(made, key=lambda told: told.asked_at).due_ms
    due_ms = row.due_ms if first is None else first["due_ms"]
    if heard_ms is not None and (heard_ms < due_ms or (first is None and heard_ms > due_ms)):  # else it is early
        yield f"its caller heard a due time that is {abs(heard_ms - due_ms)} ms from what it was given"


def _was_reserved(story: Story, row: Row, told: Told, evidence: Evidence) -> bool:
    """Whether an attempt held the job at some moment between question and answer."""
    if row.state == State.RESERVED:
        return True  # since when, the row does not tell
    asked_ms = _by_the_database(told.asked_at, evidence) - READING_MS
    answered_ms = _by_the_database(told.answered_at or evidence.at, evidence) + READING_MS
    held = [e for e in story.events if e.outcome in ENDS_ATTEMPT and e.reserved_ms is not None]
    return any(e.reserved_ms <= answered_ms and e.done_ms >= asked_ms for e in held if e.reserved_ms is not None)


def _by_the_database(at: int, evidence: Evidence) -> int:
    return evidence.now_ms - (evidence.at - at) // 1_000_000


# What is still there


def _stuck(story: Story, evidence: Evidence, quiet_ms: int) -> Iterator[str]:
    row = story.row
    if row is None or row.state not in LIVE:
        return
    since_ms = row.lease_ms if row.state == State.RESERVED else row.due_ms
    if since_ms is not None and since_ms < evidence.now_ms - quiet_ms:
        what = "its lease ended" if row.state == State.RESERVED else "it was due"
        yield f"{what} {evidence.now_ms - since_ms} ms ago, and nobody looks at it"
    if row.state == State.RESERVED and (row.lease_ms or 0) > evidence.now_ms + row.ttr_ms:
        yield f"it is held for longer than its TTR of {row.ttr_ms} ms"


def _drift(evidence: Evidence, known: dict[int, Story], quiet_ms: int) -> Iterator[Violation]:
    if evidence.places is None:
        return
    places = defaultdict(list)
    for place in evidence.places:
        places[place.job].append(place)
    for job, found in places.items():
        story = known.get(job) or Story(job, found[0].topic)
        yield from (story.breach("drift", why) for why in _misplaced(story.row, found))
    fed_ms = evidence.now_ms + evidence.horizon_ms - quiet_ms  # the last of the horizon may be on its way
    for story in known.values():
        row = story.row
        if row is not None and row.state in LIVE and row.id not in places and row.due_ms < fed_ms:
            yield story.breach("drift", "it is live, and the mirror does not hold it")


def _misplaced(row: Row | None, found: list[Place]) -> Iterator[str]:
    if len(found) > 1:
        yield f"it is in {len(found)} places of the mirror"
    if row is None or row.state not in LIVE:
        yield "the mirror holds it, and it is not live"
        return
    strange = sorted({place.topic for place in found} - {row.topic})
    if strange:
        yield f"the mirror has it under {', '.join(strange)}"
    late_ms = min((0 if place.ready else place.score) for place in found) - _look_at_ms(row)
    if late_ms > 0:
        yield f"the mirror looks {late_ms} ms too late"


def _look_at_ms(row: Row) -> int:
    return row.lease_ms if row.state == State.RESERVED and row.lease_ms is not None else row.due_ms
