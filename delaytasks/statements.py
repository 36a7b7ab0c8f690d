"""The guarded statements: each move of the lifecycle is one UPDATE that names the state it leaves.

Zero rows changed means that somebody else was first. Statements over several rows lock in id
order, so that they cannot lock each other out. A statement's text does not tell how many rows it
is about, only whether it is one, so that PostgreSQL plans it once; what it answers is small and
typed. Reading for people is in querysets.py.

What names rows by id says nothing of ended_at: a live state implies it, and with stale statistics
the planner would take the partial index of live rows for the smaller one and read all of it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import dialect
from .states import Outcome, State

DELAYED, RESERVED, FINISHED = int(State.DELAYED), int(State.RESERVED), int(State.FINISHED)
CANCELLED, DEAD = int(State.CANCELLED), int(State.DEAD)
_EVENTS = 1000  # rows of one INSERT; SQLite allows 32,766 parameters


class NewJob(NamedTuple):
    """A promise to insert. Exactly one of due_ms and delay_ms is set."""

    topic: str
    key: str
    due_ms: int | None
    delay_ms: int | None
    ttr_ms: int
    body: str  # JSON


class Placed(NamedTuple):
    id: int
    topic: str
    key: str
    due_ms: int
    placed_ms: int  # when


class Live(NamedTuple):
    id: int
    topic: str
    key: str
    state: int
    due_ms: int
    attempt: int


class Claimed(NamedTuple):
    id: int
    topic: str
    key: str
    body: Any
    attempt: int
    failures: int
    ttr_ms: int
    due_ms: int
    created_ms: int
    reserved_ms: int
    lease_ms: int


class Holding(NamedTuple):
    """A job as somebody outside may hold it: what an attempt at it consists of, and whether that still stands."""

    claimed: Claimed
    state: int
    worker: str
    now_ms: int

    def held_by(self, attempt: int) -> bool:
        return self.state == RESERVED and self.claimed.attempt == attempt and self.claimed.lease_ms > self.now_ms


class Ending(NamedTuple):
    """How a held attempt ends, and its event. delay_ms None with DELAYED keeps the due time (a hand-back)."""

    id: int
    attempt: int
    state: int
    delay_ms: int | None
    failed: int
    error: str  # of the job: one line
    outcome: Outcome = Outcome.FINISHED
    due_ms: int = 0
    reserved_ms: int | None = None
    worker: str = ""
    actor: str = ""
    trace: str = ""  # of the event: all of it


_ENDING_KINDS = ["bigint", "int", "smallint", "bigint", "int", "text", "text", "bigint", "bigint"] + ["text"] * 3


class Event(NamedTuple):
    job_id: int
    outcome: Outcome
    attempt: int
    due_ms: int
    done_ms: int
    reserved_ms: int | None = None
    next_due_ms: int | None = None
    worker: str = ""
    actor: str = ""
    error: str = ""
    reason: str = ""


_NEW_KINDS = ["text", "text", "bigint", "bigint", "bigint", "text"]


def insert_new(using: str, rows: Sequence[NewJob], meanwhile: Callable[[], None] | None = None) -> list[Placed]:
    """What was inserted; a row whose (topic, key) is live is left out. A past due time becomes now.

    meanwhile   as for dialect.run()
    """
    d = dialect.of(using)
    table, params = d.table(_NEW_KINDS, rows)
    sql = f"""
        WITH new (topic, key, at_ms, delay_ms, ttr_ms, body) AS ({table})
        INSERT INTO delaytasks_job
            (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error)
        SELECT topic, key, {DELAYED}, {_new_due(d)}, ttr_ms, {d.as_json("body")}, {d.now}, 0, 0, '', '' FROM new
        WHERE true
        ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms("created_at")}"""
    return list(map(Placed._make, dialect.run(using, sql, params, meanwhile)))


def _new_due(d: dialect.Dialect) -> str:
    return f"""CASE WHEN delay_ms IS NULL THEN {d.greatest}({d.from_ms("at_ms")}, {d.now})
            ELSE {d.plus_ms(d.now, "delay_ms")} END"""


def replace_delayed(using: str, rows: Mapping[int, NewJob]) -> list[Placed]:
    """delayed/ready → delayed: live promises, by id, take new terms; those that are not delayed any more are left out.

    In what is returned placed_ms is the statement's time.
    """
    d = dialect.of(using)
    terms = [(i, r.due_ms, r.delay_ms, r.ttr_ms, r.body) for i, r in rows.items()]
    table, params = d.table(["bigint", *_NEW_KINDS[2:]], terms)
    sql = f"""
        WITH new_terms (job_id, at_ms, delay_ms, new_ttr_ms, new_body) AS ({table})
        UPDATE delaytasks_job SET failures = 0, error = '', ttr_ms = new_ttr_ms, body = {d.as_json("new_body")},
            due_at = {_new_due(d)}
        FROM new_terms WHERE id = job_id AND state = {DELAYED}
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    return [Placed(*row) for row in dialect.run(using, sql, params)]


def find_live(using: str, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Live]:
    """The live jobs of these (topic, key)."""
    table, params = dialect.of(using).table(["text", "text"], pairs)
    found = _find(using, f"ended_at IS NULL AND (topic, key) IN ({table}) ORDER BY id", params)
    return {(live.topic, live.key): live for live in found}


def find_by_id(using: str, job_id: int) -> Live | None:
    """The job, live or ended."""
    return next(iter(_find(using, "id = %s", [job_id])), None)


def lock_delayed(using: str, job_id: int) -> Live | None:
    """The job, if it is delayed or ready, locked until the transaction ends; never waits for a reserved one."""
    where = f"id = %s AND state = {DELAYED} {dialect.of(using).lock}"
    return next(iter(_find(using, where, [job_id])), None)


def lock_in_state(using: str, ids: Sequence[int], state: int, only: str = "", *, wait: bool = True) -> list[Live]:
    """Those of the jobs that are in this state, locked in the order of their ids until the transaction ends.

    wait   False: those that somebody else has locked are passed by; a database without row locks passes none
    """
    d = dialect.of(using)
    these, params = d.among("id", ids)
    return _find(using, f"{these} AND state = {state} {only} ORDER BY id {d.lock if wait else d.skip_locked}", params)


def find_latest(using: str, topic: str, key: str) -> Live | None:
    """The live job of (topic, key), or else the newest that ever was."""
    live = find_live(using, [(topic, key)]).get((topic, key))
    if live is not None:
        return live
    return next(iter(_find(using, "topic = %s AND key = %s ORDER BY id DESC LIMIT 1", [topic, key])), None)


def _find(using: str, where: str, params: list[Any]) -> list[Live]:
    d = dialect.of(using)
    sql = f"SELECT id, topic, key, state, {d.to_ms('due_at')}, attempt FROM delaytasks_job WHERE {where}"
    return [Live(*row) for row in dialect.run(using, sql, params)]


class Cancelled(NamedTuple):
    id: int
    topic: str
    attempt: int
    due_ms: int
    done_ms: int


def cancel_delayed(using: str, job_id: int, *, actor: str = "", reason: str = "") -> Cancelled | None:
    """delayed/ready → cancelled, with an event; None if it is not delayed any more."""
    return _cancel(using, "id = %s", [job_id], actor, reason)


def cancel_live(using: str, topic: str, key: str, *, actor: str = "", reason: str = "") -> Cancelled | None:
    """The same of the live job of (topic, key); None if there is none, or its handler is running."""
    return _cancel(using, "topic = %s AND key = %s AND ended_at IS NULL", [topic, key], actor, reason)


def _cancel(using: str, which: str, params: list[Any], actor: str, reason: str) -> Cancelled | None:
    """One row at most, so that no order of locks is needed. Where WITH may write it is one statement, else two."""
    d = dialect.of(using)
    update = f"""
        UPDATE delaytasks_job SET state = {CANCELLED}, ended_at = {d.now}
        WHERE {which} AND state = {DELAYED}
        RETURNING id, topic, attempt, {d.to_ms("due_at")} AS was_due_ms, {d.to_ms("ended_at")} AS now_ms"""
    if d.writes_in_with:
        sql = f"""
            WITH ended AS ({update}), noted AS (
                INSERT INTO delaytasks_jobevent ({_EVENT_COLUMNS})
                SELECT id, '{Outcome.CANCELLED}', attempt, was_due_ms, now_ms, NULL, NULL, '',
                    CAST(%s AS text), '', CAST(%s AS text) FROM ended)
            SELECT * FROM ended"""
        found = dialect.run(using, sql, [*params, actor, reason])
        return Cancelled(*found[0]) if found else None
    for done in map(Cancelled._make, dialect.run(using, update, params)):
        event = Event(done.id, Outcome.CANCELLED, done.attempt, done.due_ms, done.done_ms)
        record(using, [event._replace(actor=actor, reason=reason)])
        return done
    return None


def move_delayed(using: str, job_id: int, *, due_ms: int | None, delay_ms: int | None) -> tuple[int, int] | None:
    """delayed/ready → delayed at another due time; (due ms, now ms), or None if it is not delayed any more.

    A time that has passed makes it ready now; what was due even before that keeps its place in the queue.
    """
    d = dialect.of(using)
    due = d.from_ms("%s") if delay_ms is None else d.plus_ms(d.now, "%s")
    sql = f"""
        UPDATE delaytasks_job
        SET due_at = CASE WHEN {due} > {d.now} THEN {due} ELSE {d.least}(due_at, {d.now}) END
        WHERE id = %s AND state = {DELAYED}
        RETURNING {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    when = due_ms if delay_ms is None else delay_ms
    found = dialect.run(using, sql, [when, when, job_id])
    return (found[0][0], found[0][1]) if found else None


def retry_if_dead(using: str, job_id: int) -> int | None:
    """dead → ready: due now, failures at 0; the new due time in ms, or None if it is not dead any more."""
    d = dialect.of(using)
    sql = f"""
        UPDATE delaytasks_job SET state = {DELAYED}, due_at = {d.now}, ended_at = NULL, died_at = NULL, failures = 0
        WHERE id = %s AND state = {DEAD} RETURNING {d.to_ms("due_at")}"""
    found = dialect.run(using, sql, [job_id])
    return found[0][0] if found else None


_CLAIM = """
    WITH due AS MATERIALIZED ({choice})
    UPDATE delaytasks_job
    SET state = {reserved}, attempt = attempt + 1, reserved_at = {now}, lease_until = {lease}, worker = %s
    FROM due WHERE id = due_id AND state = {delayed}
    RETURNING id, topic, key, body, attempt, failures, ttr_ms, {due_ms}, {created_ms}, {reserved_ms}, {lease_ms}"""


def _claim(using: str, choice: str, params: list[Any], worker: str) -> list[Claimed]:
    d = dialect.of(using)
    sql = _CLAIM.format(
        choice=choice, reserved=RESERVED, delayed=DELAYED, now=d.now, lease=d.plus_ms(d.now, "ttr_ms"),
        due_ms=d.to_ms("due_at"), created_ms=d.to_ms("created_at"),
        reserved_ms=d.to_ms("reserved_at"), lease_ms=d.to_ms("lease_until"),
    )  # fmt: skip
    return [_with_body(Claimed(*row)) for row in dialect.run(using, sql, [*params, worker])]


def _with_body(claimed: Claimed) -> Claimed:
    """Its body read, where the database hands out JSON as text."""
    return claimed._replace(body=json.loads(claimed.body)) if isinstance(claimed.body, str) else claimed


def claim(using: str, topic: str, ids: Sequence[int], worker: str) -> list[Claimed]:
    """ready → reserved for those of `ids` that are due, delayed and not locked by anybody: attempt + 1, a lease."""
    d = dialect.of(using)
    these, params = d.among("id", ids)
    choice = f"""SELECT id AS due_id FROM delaytasks_job
        WHERE {these} AND topic = %s AND state = {DELAYED} AND due_at <= {d.now}
        ORDER BY id {d.skip_locked}"""
    return sorted(_claim(using, choice, [*params, topic], worker), key=lambda c: (c.due_ms, c.id))


def claim_due_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""SELECT id AS due_id FROM delaytasks_job
        WHERE topic = %s AND ended_at IS NULL AND state = {DELAYED} AND due_at <= {d.now}
        ORDER BY due_at, id LIMIT %s {d.skip_locked}"""


def claim_due(using: str, topic: str, count: int, worker: str) -> list[Claimed]:
    """ready → reserved for up to `count` of the topic's oldest due jobs: how it is done without a mirror."""
    claimed = _claim(using, claim_due_sql(using), [topic, count], worker)
    return sorted(claimed, key=lambda c: (c.due_ms, c.id))


def _locked_first(d: dialect.Dialect, rows: Sequence[Any]) -> tuple[str, str]:
    """(a CTE that locks the held rows in id order, which to read then): two such statements cannot lock each other out.

    One row needs no order, and a database without row locks has none.
    """
    if len(rows) < 2 or not d.lock:
        return "", "held"
    cte = f""", mine AS MATERIALIZED (
            SELECT held.* FROM delaytasks_job JOIN held ON id = job_id AND attempt = token
            WHERE state = {RESERVED} ORDER BY id {d.lock} OF delaytasks_job)"""
    return cte, "mine"


def find_holding(using: str, job_id: int) -> Holding | None:
    """The job as an attempt at it, whoever holds it; None if there is no such job."""
    d = dialect.of(using)
    sql = f"""
        SELECT id, topic, key, body, attempt, failures, ttr_ms, {d.to_ms("due_at")}, {d.to_ms("created_at")},
            coalesce({d.to_ms("reserved_at")}, 0), coalesce({d.to_ms("lease_until")}, 0), state, worker,
            {d.to_ms(d.now)}
        FROM delaytasks_job WHERE id = %s"""
    for *claimed, state, worker, now_ms in dialect.run(using, sql, [job_id]):
        return Holding(_with_body(Claimed(*claimed)), state, worker, now_ms)
    return None


def _in_time(d: dialect.Dialect, in_time: bool) -> str:
    return f"AND lease_until > {d.now}" if in_time else ""


def end_if_held(
    using: str, endings: Sequence[Ending], *, in_time: bool = False, relaxed: bool = False
) -> dict[int, tuple[int, int]]:
    """reserved → finished, delayed or dead, where (id, attempt) still holds, with an event; id → (due ms, now ms).

    in_time   a lease that is over no longer holds, even if nobody has taken the job back
    relaxed   the commit of this transaction does not wait for the disk (PostgreSQL)

    The one statement by which an attempt ends. An id that is missing from the answer was lost:
    its TTR passed and it was taken back, or reserved by somebody else.
    """
    d = dialect.of(using)
    endings = sorted(endings)
    table, params = d.table(_ENDING_KINDS, endings)
    cte, held = _locked_first(d, endings)
    ctes = f"""
        WITH held (job_id, token, next_state, delay_ms, failed, said,
                   outcome, was_due_ms, began_ms, by_worker, by_actor, trace) AS ({table}) {cte}"""
    update = f"""
        UPDATE delaytasks_job SET
            state = next_state,
            due_at = CASE WHEN delay_ms IS NULL THEN due_at ELSE {d.plus_ms(d.now, "delay_ms")} END,
            ended_at = CASE WHEN next_state = {DELAYED} THEN NULL ELSE {d.now} END,
            died_at = CASE WHEN next_state = {DEAD} THEN {d.now} END,
            lease_until = NULL, failures = failures + failed, error = said
        FROM {held} WHERE id = job_id AND attempt = token AND state = {RESERVED} {_in_time(d, in_time)}
        RETURNING id, {d.to_ms("due_at")} AS next_due_ms, {d.to_ms(d.now)} AS now_ms"""
    if d.writes_in_with:
        sql = f"""{ctes}, ended AS ({update}, {held}.*), noted AS (
            INSERT INTO delaytasks_jobevent ({_EVENT_COLUMNS})
            SELECT id, outcome, token, was_due_ms, now_ms, began_ms,
                CASE WHEN next_state = {DELAYED} THEN next_due_ms END, by_worker, by_actor, trace, '' FROM ended)
        SELECT id, next_due_ms, now_ms{_RELAX if relaxed else ""} FROM ended"""
        return {row[0]: (row[1], row[2]) for row in dialect.run(using, sql, params)}
    ended = {row[0]: (row[1], row[2]) for row in dialect.run(using, ctes + update, params)}
    record(using, [_event(e, *ended[e.id]) for e in endings if e.id in ended])
    return ended


_RELAX = ", set_config('synchronous_commit', 'off', true)"  # of this transaction


def _event(e: Ending, next_due_ms: int, now_ms: int) -> Event:
    next_ms = next_due_ms if e.state == DELAYED else None
    return Event(e.id, e.outcome, e.attempt, e.due_ms, now_ms, e.reserved_ms, next_ms, e.worker, e.actor, e.trace)


def renew_if_held(using: str, held: Sequence[tuple[int, int]], *, in_time: bool = False) -> dict[int, int]:
    """reserved → reserved with a lease of its TTR from now on; id → new lease end in ms. in_time as above."""
    d = dialect.of(using)
    table, params = d.table(["bigint", "int"], sorted(held))
    cte, rows = _locked_first(d, held)
    sql = f"""
        WITH held (job_id, token) AS ({table}) {cte}
        UPDATE delaytasks_job SET lease_until = {d.plus_ms(d.now, "ttr_ms")}
        FROM {rows} WHERE id = job_id AND attempt = token AND state = {RESERVED} {_in_time(d, in_time)}
        RETURNING id, {d.to_ms("lease_until")}"""
    return {row[0]: row[1] for row in dialect.run(using, sql, params)}


def expire(using: str, leases: Sequence[tuple[int, int, int]], error: str) -> dict[int, tuple[int, int]]:
    """reserved → ready or dead where the lease is over; leases are (id, attempt, max_attempts).

    id → (the state it has now, now ms). A row that is locked is passed by: its holder is at it.
    """
    d = dialect.of(using)
    table, params = d.table(["bigint", "int", "int"], sorted(leases))
    over = f"state = {RESERVED} AND lease_until <= {d.now}"
    sql = f"""
        WITH held (job_id, token, most) AS ({table}),
        mine AS MATERIALIZED (
            SELECT id AS mine_id FROM delaytasks_job JOIN held ON id = job_id AND attempt = token
            WHERE {over} ORDER BY id {d.skip_locked and d.lock + " OF delaytasks_job SKIP LOCKED"})
        UPDATE delaytasks_job SET
            failures = failures + 1, lease_until = NULL, error = %s,
            state = CASE WHEN failures + 1 >= most THEN {DEAD} ELSE {DELAYED} END,
            ended_at = CASE WHEN failures + 1 >= most THEN {d.now} END,
            died_at = CASE WHEN failures + 1 >= most THEN {d.now} END
        FROM held JOIN mine ON mine_id = job_id WHERE id = job_id AND attempt = token AND {over}
        RETURNING id, state, {d.to_ms(d.now)}"""
    return {row[0]: (row[1], row[2]) for row in dialect.run(using, sql, [*params, error])}


_EVENT_COLUMNS = (
    "job_id, outcome, attempt, due_ms, done_ms, reserved_ms, next_due_ms, worker, actor, error, reason"  # as in Event
)
_EVENT_KINDS = ["bigint", "text", "int", "bigint", "bigint", "bigint", "bigint", "text", "text", "text", "text"]


def record(using: str, events: Iterable[Event]) -> None:
    """Append to JobEvent, in the caller's transaction."""
    rows = list(events)
    for start in range(0, len(rows), _EVENTS):
        table, params = dialect.of(using).table(_EVENT_KINDS, rows[start : start + _EVENTS])
        dialect.run(using, f"INSERT INTO delaytasks_jobevent ({_EVENT_COLUMNS}) {table}", params)
