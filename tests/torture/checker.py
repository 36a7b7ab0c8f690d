"""Find broken promises: compare the ledger with the state of the system at the end.

Pure: it reads only an Evidence, so that it can be tested on forged ones. Each rule is a promise and yields the
reasons why a job broke it:

lost                  scheduled, but neither live nor ended as it should
early                 started before its due time, by the database's clock or by a clock that is never set
effect twice          the effect in the database exists more than once
ran after cancelled   its caller was told "cancelled", but it ran or left an effect
lost fence            two attempts held or ended it, or an attempt that did not finish it left an effect
untrue answer         what its caller was told cannot have been true
stuck                 live and overdue for longer than the quiet time
drift                 the mirror and the rows disagree. An entry that is too early is allowed: it costs a refused claim
phantom               a job that no caller scheduled
charged               a failure was counted for an attempt whose handler was not called, and it was not the only one of
                      its process: that one may have died just before the call; or for a target that was away
lateness              half of the attempts began more than 50 ms before or after the time in their event
unconfirmed           a forwarded job was finished, but its target had not confirmed the message of that attempt
wrong id              a target received a message with another id than that of its job

What is particular to forwarded jobs is in forwarded_jobs.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from delaytasks.states import Outcome, State

from . import forwarded_jobs, job_histories
from .constants import FORWARDED, most_attempts
from .evidence import Evidence, Happened, Place, Row
from .job_histories import READING_MS, ROUNDING_NS, JobHistory, Request, Violation, database_ms, earliest

LIVE = (State.DELAYED, State.RESERVED)
OUTSIDE_ONLY = "torture.http"  # prefix of topics with HTTP consumers, which leave no effect in the database
ENDS_ATTEMPT = (  # each attempt that began has exactly one of these events, unless it still holds its job
    Outcome.FINISHED, Outcome.FAILED, Outcome.SNOOZED, Outcome.RELEASED, Outcome.EXPIRED, Outcome.DEAD,
)  # fmt: skip
GROUPED = ("torture.batch", "torture.together")  # topics whose jobs are claimed together
LATENESS_MS, ENOUGH = 50, 20  # how far half of the attempts may be off, if there are this many; load explains 20 ms


def check(evidence: Evidence, *, quiet_ms: int = 15_000) -> list[Violation]:
    """Return every violation.

    quiet_ms   time since the last fault; a job overdue by more than that is stuck
    """
    known, found = job_histories.read(evidence)
    for history in known.values():
        for kind, rule in RULES.items():
            found += [history.breach(kind, why) for why in rule(history)]
        found += [history.breach("early", why) for why in _before_the_answers(history, evidence)]
        found += [history.breach("untrue answer", why) for why in _untrue_answer(history, evidence)]
        found += [history.breach("stuck", why) for why in _stuck(history, evidence, quiet_ms)]
        found += [history.breach(*breach) for breach in forwarded_jobs.breaches(history, evidence)]
    found += [*_partial_calls(evidence), *_drift(evidence, known, quiet_ms)]
    found += forwarded_jobs.held_for_nothing(evidence, known)
    return found + list(_charged(known)) + list(_wrong_lateness(known))


# Lost


def _lost(history: JobHistory) -> Iterator[str]:
    row = history.row
    if row is None:
        if history.begun or history.effects or any(request.said == "scheduled" for request in history.requests):
            yield "it was scheduled, but there is no row"
        return
    if row.state == State.FINISHED:
        yield from _finished_for_nothing(history, row)
    elif history.finishes:
        yield f"its consumer was told that it had finished, but it is {State(row.state).word}"
    if row.state == State.CANCELLED and not any(t.op == "cancel" and t.may_have_changed for t in history.requests):
        yield "it is cancelled, but no caller cancelled it"
    if row.state == State.DEAD and row.failures < most_attempts(row.topic):
        yield f"it is dead after {row.failures} failures of {most_attempts(row.topic)}"
    failed = sum(event.outcome in (Outcome.FAILED, Outcome.EXPIRED, Outcome.DEAD) for event in history.events)
    if row.failures > failed:
        yield f"it has {row.failures} failures, but {failed} events of a failure"


def _finished_for_nothing(history: JobHistory, row: Row) -> Iterator[str]:
    """Check that a finished job has its effect, its event and a started attempt."""
    forwarded = row.topic.startswith(FORWARDED)
    if forwarded and not history.receipts:
        yield "it is finished, but its target never received it"
    elif not forwarded and not (history.outside if row.topic.startswith(OUTSIDE_ONLY) else history.effects):
        yield "it is finished, but its effect is missing"
    if not any(event.outcome == Outcome.FINISHED for event in history.events):
        yield "it is finished, but the event is missing"
    elif not forwarded and not any(begin["attempt"] == row.attempt for begin in history.begun):
        yield f"attempt {row.attempt} finished it, but never started"


def _partial_calls(evidence: Evidence) -> Iterator[Violation]:
    """Find calls that scheduled several jobs of which only some exist."""
    keys = {(row.topic, row.key) for row in evidence.rows}
    groups = defaultdict(list)
    for entry in evidence.entries:
        if entry["kind"] == "asks" and entry.get("group"):
            groups[entry["group"]].append((entry["topic"], entry["key"]))
    for jobs in groups.values():
        missing = [job for job in jobs if job not in keys]
        if missing and len(missing) < len(jobs):
            topic, key = missing[0]
            yield Violation("lost", topic, key, None, f"{len(missing)} of {len(jobs)} jobs of one call are missing")


# Early


def _early(history: JobHistory) -> Iterator[str]:
    for begin in history.begun:
        if begin["now_ms"] < begin["due_ms"]:
            early_ms = begin["due_ms"] - begin["now_ms"]
            yield f"attempt {begin['attempt']} started {early_ms} ms before the due time of the row"
        retry_ms = _retry_due_ms(history, begin["attempt"])
        if retry_ms is not None and begin["now_ms"] < retry_ms:
            yield f"attempt {begin['attempt']} started {retry_ms - begin['now_ms']} ms before its retry was due"
    for event in _ends(history):
        if event.reserved_ms is not None and event.reserved_ms < event.due_ms:
            yield f"attempt {event.attempt} was reserved {event.due_ms - event.reserved_ms} ms before its due time"


def _retry_due_ms(history: JobHistory, attempt: int) -> int | None:
    """Return the due time of this attempt according to the event of the attempt before it."""
    before = [event for event in history.events if event.attempt == attempt - 1 and event.next_due_ms is not None]
    return before[-1].next_due_ms if before else None


def _before_the_answers(history: JobHistory, evidence: Evidence) -> Iterator[str]:
    """Compare with the due times that callers were told and with the delays that they requested."""
    for begin in history.begun:
        due_ms = earliest(history.requests, begin["at"], lambda t: t.due_ms, known=True)
        if due_ms is not None and begin["now_ms"] < due_ms:
            early_ms = due_ms - begin["now_ms"]
            yield f"attempt {begin['attempt']} started {early_ms} ms before the due time that its caller was told"
        not_before = earliest(history.requests, begin["at"], lambda t: t.not_before, known=False)
        began = evidence.jumped(begin["at"])
        if not_before is not None and began < not_before - ROUNDING_NS:
            early_ms = round((not_before - began) / 1e6)
            yield f"attempt {begin['attempt']} started {early_ms} ms before the requested delay was over"


# Effects and attempts


def _effect_twice(history: JobHistory) -> Iterator[str]:
    if len(history.effects) > 1:
        yield f"its effect exists {len(history.effects)} times, of attempts {[e.attempt for e in history.effects]}"


def _ran_after_cancelled(history: JobHistory) -> Iterator[str]:
    row = history.row
    cancelled = [event.attempt for event in history.events if event.outcome == Outcome.CANCELLED]
    answers = [
        request.answered_at
        for request in history.requests
        if request.said == "cancelled" and request.answered_at is not None
    ]
    if row and row.state != State.CANCELLED and (answers or cancelled):
        source = "its caller was told that it was cancelled" if answers else "an event says that it was cancelled"
        yield f"{source}, but it is {State(row.state).word}"
    heard_at, last = min(answers, default=None), min(cancelled, default=None)
    # A handler may be called after its attempt was fenced, if that was claimed before: its end is refused.
    fenced = {event.attempt for event in _ends(history) if event.outcome == Outcome.CANCELLED}
    late = [
        begin["attempt"]
        for begin in history.begun
        if (heard_at is not None and begin["at"] > heard_at and begin["attempt"] not in fenced)
        or (last is not None and begin["attempt"] > last)
    ]
    if late:
        yield f"attempts {late} started after it was cancelled"
    if history.effects and (answers or cancelled or (row and row.state == State.CANCELLED)):
        yield "it was cancelled, but its effect exists"
    if row and row.state == State.CANCELLED and not cancelled:
        yield "it is cancelled, but the event is missing"


def _lost_fence(history: JobHistory) -> Iterator[str]:
    finished = [event.attempt for event in history.events if event.outcome == Outcome.FINISHED]
    heard = {finish["attempt"] for finish in history.finishes}
    if len(finished) > 1:
        yield f"it was finished by attempts {finished}"
    if finished and heard - set(finished):
        yield f"consumers were told that attempts {sorted(heard)} finished it, but the events say {finished}"
    if history.row and finished and history.row.state != State.FINISHED:
        yield f"attempt {finished[-1]} finished it, but it is {State(history.row.state).word}"
    if history.row and finished and finished[-1] != history.row.attempt:
        yield f"attempt {finished[-1]} finished it after attempt {history.row.attempt} had started"
    others = [effect.attempt for effect in history.effects if effect.attempt not in finished]
    if others and not (history.row and history.row.state == State.CANCELLED):
        yield f"there is an effect of attempts {others}, but attempts {finished} finished it"
    yield from _two_holders(history)
    yield from _attempts_without_an_end(history)


def _two_holders(history: JobHistory) -> Iterator[str]:
    """Only the same worker thread may start an attempt again: after a conflict, or from a batch that failed."""
    holders = defaultdict(list)
    for begin in history.begun:
        holders[begin["attempt"]].append(f"{begin['pid']}/{begin['thread']}")
    for attempt, threads in holders.items():
        if len(set(threads)) > 1:
            yield f"attempt {attempt} was handed out to {' and '.join(sorted(set(threads)))}"
        elif len(threads) > 1 and history.topic.startswith(OUTSIDE_ONLY):
            yield f"attempt {attempt} was handed out {len(threads)} times"
    known = history.row.attempt if history.row else None
    if known is not None and holders and max(holders) > known:
        yield f"attempt {max(holders)} started, but the last attempt of the row is {known}"


def _attempts_without_an_end(history: JobHistory) -> Iterator[str]:
    row = history.row
    if row is None:
        return
    ends = Counter(event.attempt for event in _ends(history))
    twice = [attempt for attempt, times in sorted(ends.items()) if times > 1]
    if twice:
        yield f"attempts {twice} ended more than once"
    held = {row.attempt} if row.state == State.RESERVED else set()
    # A claimed job that is handed back before its handler is called leaves no event. Nor does one of a group that was
    # rolled back, if it is handed back before its handler is called once more.
    handed_back = set(range(row.attempt)) if row.topic in GROUPED else set()
    begun = {begin["attempt"] for begin in history.begun if begin["attempt"] <= row.attempt}
    open_ended = begun - ends.keys() - held - handed_back
    if open_ended:
        yield f"attempts {sorted(open_ended)} began, but have no event of their end"
    if held & ends.keys():
        yield f"attempt {row.attempt} has ended, but still holds the lease"


def _ends(history: JobHistory) -> list[Happened]:
    """Return the events that end an attempt: also that of cancel(running="fence"), which has the time of its claim."""
    return [
        event
        for event in history.events
        if event.outcome in ENDS_ATTEMPT or (event.outcome == Outcome.CANCELLED and event.reserved_ms is not None)
    ]


def _charged(known: dict[int, JobHistory]) -> Iterator[Violation]:
    """Find jobs that were charged for the death of a process that had not called their handler."""
    of_process = defaultdict(list)
    for history in known.values():
        if history.topic.startswith((OUTSIDE_ONLY, FORWARDED, *GROUPED)):
            continue
        begun = {begin["attempt"] for begin in history.begun}
        for event in history.events:
            if event.outcome in (Outcome.FAILED, Outcome.EXPIRED, Outcome.DEAD) and event.attempt not in begun:
                of_process[event.worker].append((event.done_ms, event.attempt, history))
    for worker, charged in of_process.items():
        for _, attempt, history in sorted(charged, key=lambda each: each[:2])[1:]:
            yield history.breach("charged", f"attempt {attempt} was charged a failure of {worker}, but never started")


def _wrong_lateness(known: dict[int, JobHistory]) -> Iterator[Violation]:
    """Compare the start that the events record with the one that the handlers saw."""
    off = []
    for history in known.values():
        recorded = {event.attempt: event.reserved_ms for event in history.events if event.outcome in ENDS_ATTEMPT}
        for begin in history.begun:
            recorded_ms = recorded.get(begin["attempt"])
            if recorded_ms is not None and not history.topic.startswith(OUTSIDE_ONLY):
                off.append(abs(begin["now_ms"] - recorded_ms))
    if len(off) >= ENOUGH and (half := statistics.median_high(off)) > LATENESS_MS:
        yield Violation(
            "lateness", "", "", None, f"half of the attempts began {half} ms or more from the recorded start"
        )


RULES: dict[str, Callable[[JobHistory], Iterator[str]]] = {
    "lost": _lost,
    "early": _early,
    "effect twice": _effect_twice,
    "ran after cancelled": _ran_after_cancelled,
    "lost fence": _lost_fence,
}
KINDS = (*RULES, "untrue answer", "stuck", "drift", "phantom", "charged", "lateness", "unconfirmed", "wrong id")


# Answers to callers


def _untrue_answer(history: JobHistory, evidence: Evidence) -> Iterator[str]:
    row = history.row
    if row is None:
        return
    for request in history.requests:
        heard = f"its caller was told {request.why or request.said!r}"
        if request.said == "unknown":
            yield f"{heard}, but there is a row"
        elif request.said == "already finished" or request.why == "NotLive":
            ended = (
                (State.FINISHED, State.DEAD) if request.said == "already finished" else tuple(set(State) - set(LIVE))
            )
            if row.state not in ended:
                yield f"{heard}, but it is {State(row.state).word}"
        elif (request.said == "running" or request.why == "Reserved") and not _was_reserved(
            history, row, request, evidence
        ):
            yield f"{heard}, but no attempt held it at that time"
    yield from _wrong_due_time(history, row)


def _wrong_due_time(history: JobHistory, row: Row) -> Iterator[str]:
    """Compare the first attempt's due time with the last one that callers were told, if its order is certain."""
    first = next((begin for begin in history.begun if begin["attempt"] == 1), None)
    if first is None and (row.attempt or row.state != State.DELAYED):
        return
    until = None if first is None else first["at"]
    made = [
        t for t in history.requests if t.op != "cancel" and t.may_have_changed and (until is None or t.asked_at < until)
    ]
    if not made or not all(t.changed and t.answered_at and (until is None or t.answered_at < until) for t in made):
        return
    told_ms = max(made, key=lambda request: request.asked_at).due_ms
    due_ms = row.due_ms if first is None else first["due_ms"]
    if told_ms is not None and (
        told_ms < due_ms or (first is None and told_ms > due_ms)
    ):  # otherwise the rule `early` reports it
        yield f"its caller was told a due time that differs by {abs(told_ms - due_ms)} ms from the real one"


def _was_reserved(history: JobHistory, row: Row, request: Request, evidence: Evidence) -> bool:
    """Return whether an attempt held the job at any moment between request and answer."""
    if row.state == State.RESERVED:
        return True  # the row does not say since when
    if history.topic.startswith(FORWARDED):
        return True  # a job that was not sent because its topic became held is given back without an event
    asked_ms = database_ms(request.asked_at, evidence) - READING_MS
    answered_ms = database_ms(request.answered_at or evidence.at, evidence) + READING_MS
    first_ms: dict[int, int] = {}  # of each attempt; its event has the last start: a deadlock repeats the handler
    for begin in history.begun:
        first_ms.setdefault(begin["attempt"], database_ms(begin["at"], evidence))
    held = [
        (min(event.reserved_ms, first_ms.get(event.attempt, event.reserved_ms)), event.done_ms)
        for event in _ends(history)
        if event.reserved_ms is not None
    ]
    return any(since_ms <= answered_ms and done_ms >= asked_ms for since_ms, done_ms in held)


# The state at the end


def _stuck(history: JobHistory, evidence: Evidence, quiet_ms: int) -> Iterator[str]:
    row = history.row
    if row is None or row.state not in LIVE:
        return
    since_ms = row.lease_ms if row.state == State.RESERVED else row.due_ms
    if since_ms is not None and since_ms < evidence.now_ms - quiet_ms:
        what = "its lease ended" if row.state == State.RESERVED else "it was due"
        yield f"{what} {evidence.now_ms - since_ms} ms ago, and it was not taken"
    if row.state == State.RESERVED and (row.lease_ms or 0) > evidence.now_ms + row.ttr_ms:
        yield f"its lease is longer than its TTR of {row.ttr_ms} ms"


def _drift(evidence: Evidence, known: dict[int, JobHistory], quiet_ms: int) -> Iterator[Violation]:
    if evidence.places is None:
        return
    places = defaultdict(list)
    for place in evidence.places:
        places[place.job].append(place)
    for job, found in places.items():
        history = known.get(job) or JobHistory(job, found[0].topic)
        yield from (history.breach("drift", why) for why in _misplaced(history.row, found))
    fed_ms = evidence.now_ms + evidence.horizon_ms - quiet_ms  # jobs at the end of the horizon may not be fed yet
    for history in known.values():
        row = history.row
        if row is not None and row.state in LIVE and row.id not in places and row.due_ms < fed_ms:
            yield history.breach("drift", "it is live, but not in the mirror")


def _misplaced(row: Row | None, found: list[Place]) -> Iterator[str]:
    if len(found) > 1:
        yield f"it is in {len(found)} places of the mirror"
    if row is None or row.state not in LIVE:
        yield "it is in the mirror, but not live"
        return
    other_topics = sorted({place.topic for place in found} - {row.topic})
    if other_topics:
        yield f"the mirror has it under {', '.join(other_topics)}"
    late_ms = min((0 if place.ready else place.score) for place in found) - _look_at_ms(row)
    if late_ms > 0:
        yield f"its entry in the mirror is {late_ms} ms too late"


def _look_at_ms(row: Row) -> int:
    return row.lease_ms if row.state == State.RESERVED and row.lease_ms is not None else row.due_ms
