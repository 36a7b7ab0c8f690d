"""The guarded statements: each move of the lifecycle is one UPDATE that names the state it leaves.

Zero rows changed means that somebody else was first. Statements over several rows lock in id
order, so that they cannot lock each other out. Rows are passed as a VALUES list; what a
statement answers is small and typed. Reading for people is in querysets.py.

What names rows by id says nothing of ended_at: a live state implies it, and with stale statistics
the planner would take the partial index of live rows for the smaller one and read all of it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
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


class Standing(NamedTuple):
    """How a job stands by the database: what the mirror's entry of it should say."""

    id: int
    topic: str
    state: int
    attempt: int
    failures: int
    due_ms: int
    lease_ms: int | None
    reserved_ms: int | None
    now_ms: int

    @property
    def lease_is_over(self) -> bool:
        return self.state == RESERVED and (self.lease_ms or 0) <= self.now_ms

    @property
    def entry_ms(self) -> int:
        """Where its entry in the mirror belongs: at its lease's end while it is held, else at its due time."""
        held = self.state == RESERVED and self.lease_ms is not None
        return self.lease_ms or 0 if held else self.due_ms


class Holding(NamedTuple):
    """A job as somebody outside may hold it: what an attempt at it consists of, and whether that still stands."""

    claimed: Claimed
    state: int
    worker: str
    now_ms: int

    def held_by(self, attempt: int) -> bool:
        return self.state == RESERVED and self.claimed.attempt == attempt and self.claimed.lease_ms > self.now_ms


class Ending(NamedTuple):
    """How a held attempt ends. delay_ms None with DELAYED keeps the due time (a hand-back)."""

    id: int
    attempt: int
    state: int
    delay_ms: int | None
    failed: int
    error: str


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


def _run(using: str, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    with dialect.cursor(using) as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


def _values(rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    row = "(" + ", ".join(["%s"] * len(rows[0])) + ")"
    return ", ".join([row] * len(rows)), [value for each in rows for value in each]


def _marks(ids: Sequence[int]) -> str:
    return ", ".join(["%s"] * len(ids))


def insert_new(using: str, rows: Sequence[NewJob]) -> list[Placed]:
    """What was inserted; a row whose (topic, key) is live is left out. A past due time becomes now."""
    d = dialect.of(using)
    at, after = f"{d.greatest}(%s, {d.now})", d.plus_ms(d.now, "%s")
    values, params = [], []
    for row in rows:
        values.append(f"(%s, %s, {DELAYED}, {at if row.delay_ms is None else after}, %s, %s, {d.now}, 0, 0, '', '')")
        when = d.moment(row.due_ms or 0) if row.delay_ms is None else row.delay_ms
        params += [row.topic, row.key, when, row.ttr_ms, row.body]
    sql = f"""
        INSERT INTO delaytasks_job
            (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error)
        VALUES {", ".join(values)}
        ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms("created_at")}"""
    return [Placed(*row) for row in _run(using, sql, params)]


def replace_delayed(using: str, rows: Mapping[int, NewJob]) -> list[Placed]:
    """delayed/ready → delayed: live promises, by id, take new terms; those that are not delayed any more are left out.

    In what is returned placed_ms is the statement's time.
    """
    d = dialect.of(using)
    values, params = _values(
        [(i, None if r.due_ms is None else d.moment(r.due_ms), r.delay_ms, r.ttr_ms, r.body) for i, r in rows.items()]
    )
    sql = f"""
        WITH new_terms (job_id, new_due, delay_ms, new_ttr_ms, new_body) AS (VALUES {values})
        UPDATE delaytasks_job SET failures = 0, error = '', ttr_ms = new_ttr_ms, body = {d.as_json("new_body")},
            due_at = CASE WHEN delay_ms IS NULL THEN {d.greatest}({d.as_moment("new_due")}, {d.now})
                     ELSE {d.plus_ms(d.now, "delay_ms")} END
        FROM new_terms WHERE id = job_id AND state = {DELAYED}
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    return [Placed(*row) for row in _run(using, sql, params)]


def find_live(using: str, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Live]:
    """The live jobs of these (topic, key)."""
    values, params = _values(pairs)
    found = _find(using, f"ended_at IS NULL AND (topic, key) IN (VALUES {values}) ORDER BY id", params)
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
    where = f"id IN ({_marks(ids)}) AND state = {state} {only} ORDER BY id {d.lock if wait else d.skip_locked}"
    return _find(using, where, list(ids))


def find_latest(using: str, topic: str, key: str) -> Live | None:
    """The live job of (topic, key), or else the newest that ever was."""
    live = find_live(using, [(topic, key)]).get((topic, key))
    if live is not None:
        return live
    return next(iter(_find(using, "topic = %s AND key = %s ORDER BY id DESC LIMIT 1", [topic, key])), None)


def _find(using: str, where: str, params: list[Any]) -> list[Live]:
    d = dialect.of(using)
    sql = f"SELECT id, topic, key, state, {d.to_ms('due_at')}, attempt FROM delaytasks_job WHERE {where}"
    return [Live(*row) for row in _run(using, sql, params)]


class Cancelled(NamedTuple):
    id: int
    attempt: int
    due_ms: int
    done_ms: int


def cancel_delayed(using: str, ids: Sequence[int]) -> list[Cancelled]:
    """delayed/ready → cancelled; those that were."""
    d = dialect.of(using)
    sql = f"""
        WITH seen AS MATERIALIZED (
            SELECT id AS job_id FROM delaytasks_job
            WHERE id IN ({_marks(ids)}) AND state = {DELAYED} ORDER BY id {d.lock})
        UPDATE delaytasks_job SET state = {CANCELLED}, ended_at = {d.now}
        FROM seen WHERE id = job_id AND state = {DELAYED}
        RETURNING id, attempt, {d.to_ms("due_at")}, {d.to_ms("ended_at")}"""
    return [Cancelled(*row) for row in _run(using, sql, list(ids))]


def move_delayed(using: str, job_id: int, *, due_ms: int | None, delay_ms: int | None) -> tuple[int, int] | None:
    """delayed/ready → delayed at another due time; (due ms, now ms), or None if it is not delayed any more.

    A time that has passed makes it ready now; what was due even before that keeps its place in the queue.
    """
    d = dialect.of(using)
    due = d.as_moment("%s") if delay_ms is None else d.plus_ms(d.now, "%s")
    sql = f"""
        UPDATE delaytasks_job
        SET due_at = CASE WHEN {due} > {d.now} THEN {due} ELSE {d.least}(due_at, {d.now}) END
        WHERE id = %s AND state = {DELAYED}
        RETURNING {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    when = d.moment(due_ms or 0) if delay_ms is None else delay_ms
    found = _run(using, sql, [when, when, job_id])
    return (found[0][0], found[0][1]) if found else None


def retry_if_dead(using: str, job_id: int) -> int | None:
    """dead → ready: due now, failures at 0; the new due time in ms, or None if it is not dead any more."""
    d = dialect.of(using)
    sql = f"""
        UPDATE delaytasks_job SET state = {DELAYED}, due_at = {d.now}, ended_at = NULL, died_at = NULL, failures = 0
        WHERE id = %s AND state = {DEAD} RETURNING {d.to_ms("due_at")}"""
    found = _run(using, sql, [job_id])
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
    return [_with_body(Claimed(*row)) for row in _run(using, sql, [*params, worker])]


def _with_body(claimed: Claimed) -> Claimed:
    """Its body read, where the database hands out JSON as text."""
    return claimed._replace(body=json.loads(claimed.body)) if isinstance(claimed.body, str) else claimed


def claim_sql(using: str, ids: Sequence[int]) -> str:
    d = dialect.of(using)
    return f"""SELECT id AS due_id FROM delaytasks_job
        WHERE id IN ({_marks(ids)}) AND topic = %s AND state = {DELAYED} AND due_at <= {d.now}
        ORDER BY id {d.skip_locked}"""


def claim(using: str, topic: str, ids: Sequence[int], worker: str) -> list[Claimed]:
    """ready → reserved for those of `ids` that are due, delayed and not locked by anybody: attempt + 1, a lease."""
    return sorted(_claim(using, claim_sql(using, ids), [*ids, topic], worker), key=lambda c: (c.due_ms, c.id))


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
    """(a CTE that locks the held rows in id order, its join): two such statements cannot lock each other out.

    One row needs no order, and a database without row locks has none.
    """
    if len(rows) < 2 or not d.lock:
        return "", ""
    cte = f""", mine AS MATERIALIZED (
            SELECT id AS mine_id FROM delaytasks_job JOIN held ON id = job_id AND attempt = token
            WHERE state = {RESERVED} ORDER BY id {d.lock} OF delaytasks_job)"""
    return cte, "JOIN mine ON mine_id = job_id"


def find_holding(using: str, job_id: int) -> Holding | None:
    """The job as an attempt at it, whoever holds it; None if there is no such job."""
    d = dialect.of(using)
    sql = f"""
        SELECT id, topic, key, body, attempt, failures, ttr_ms, {d.to_ms("due_at")}, {d.to_ms("created_at")},
            coalesce({d.to_ms("reserved_at")}, 0), coalesce({d.to_ms("lease_until")}, 0), state, worker,
            {d.to_ms(d.now)}
        FROM delaytasks_job WHERE id = %s"""
    for *claimed, state, worker, now_ms in _run(using, sql, [job_id]):
        return Holding(_with_body(Claimed(*claimed)), state, worker, now_ms)
    return None


def _in_time(d: dialect.Dialect, in_time: bool) -> str:
    return f"AND lease_until > {d.now}" if in_time else ""


def end_if_held(using: str, endings: Sequence[Ending], *, in_time: bool = False) -> dict[int, tuple[int, int]]:
    """reserved → finished, delayed or dead, where (id, attempt) still holds; id → (due ms, now ms) of those.

    in_time   a lease that is over no longer holds, even if nobody has taken the job back

    The one statement by which an attempt ends. An id that is missing from the answer was lost:
    its TTR passed and it was taken back, or reserved by somebody else.
    """
    d = dialect.of(using)
    values, params = _values(sorted(endings))
    mine, join = _locked_first(d, endings)
    sql = f"""
        WITH held (job_id, token, next_state, delay_ms, failed, said) AS (VALUES {values}) {mine}
        UPDATE delaytasks_job SET
            state = next_state,
            due_at = CASE WHEN delay_ms IS NULL THEN due_at ELSE {d.plus_ms(d.now, "delay_ms")} END,
            ended_at = CASE WHEN next_state = {DELAYED} THEN NULL ELSE {d.now} END,
            died_at = CASE WHEN next_state = {DEAD} THEN {d.now} END,
            lease_until = NULL, failures = failures + failed, error = said
        FROM held {join} WHERE id = job_id AND attempt = token AND state = {RESERVED} {_in_time(d, in_time)}
        RETURNING id, {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    return {row[0]: (row[1], row[2]) for row in _run(using, sql, params)}


def renew_if_held(using: str, held: Sequence[tuple[int, int]], *, in_time: bool = False) -> dict[int, int]:
    """reserved → reserved with a lease of its TTR from now on; id → new lease end in ms. in_time as above."""
    d = dialect.of(using)
    values, params = _values(sorted(held))
    mine, join = _locked_first(d, held)
    sql = f"""
        WITH held (job_id, token) AS (VALUES {values}) {mine}
        UPDATE delaytasks_job SET lease_until = {d.plus_ms(d.now, "ttr_ms")}
        FROM held {join} WHERE id = job_id AND attempt = token AND state = {RESERVED} {_in_time(d, in_time)}
        RETURNING id, {d.to_ms("lease_until")}"""
    return {row[0]: row[1] for row in _run(using, sql, params)}


def expire(using: str, leases: Sequence[tuple[int, int, int]], error: str) -> dict[int, tuple[int, int]]:
    """reserved → ready or dead where the lease is over; leases are (id, attempt, max_attempts).

    id → (the state it has now, now ms). A row that is locked is passed by: its holder is at it.
    """
    d = dialect.of(using)
    values, params = _values(sorted(leases))
    over = f"state = {RESERVED} AND lease_until <= {d.now}"
    sql = f"""
        WITH held (job_id, token, most) AS (VALUES {values}),
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
    return {row[0]: (row[1], row[2]) for row in _run(using, sql, [*params, error])}


def record(using: str, events: Iterable[Event]) -> None:
    """Append to JobEvent, in the caller's transaction."""
    rows = list(events)
    for start in range(0, len(rows), _EVENTS):
        values, params = _values(rows[start : start + _EVENTS])
        with dialect.cursor(using) as cursor:
            cursor.execute(
                f"INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, done_ms, reserved_ms,"
                f" next_due_ms, worker, actor, error, reason) VALUES {values}",
                params,
            )


def _standing(d: dialect.Dialect) -> str:
    return f"""SELECT id, topic, state, attempt, failures, {d.to_ms("due_at")}, {d.to_ms("lease_until")},
        {d.to_ms("reserved_at")}, {d.to_ms(d.now)} FROM delaytasks_job"""


def stand(using: str, ids: Sequence[int]) -> list[Standing]:
    """How these jobs stand, ended ones too; an id that no row knows is left out."""
    sql = f"{_standing(dialect.of(using))} WHERE id IN ({_marks(ids)})"
    return [Standing(*row) for row in _run(using, sql, list(ids))]


def overdue_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""{_standing(d)} WHERE ended_at IS NULL AND due_at <= {d.plus_ms(d.now, "%s")} AND (due_at, id) > (%s, %s)
        AND (state = {DELAYED} OR lease_until <= {d.now}) ORDER BY due_at, id LIMIT %s"""


def overdue(using: str, *, age_ms: int, after: tuple[int, int], limit: int) -> list[Standing]:
    """Live jobs that are due for `age_ms` or longer and that nobody holds, behind the cursor (due_ms, id)."""
    due_ms, job_id = after
    params = [-age_ms, dialect.of(using).moment(due_ms), job_id, limit]
    return [Standing(*row) for row in _run(using, overdue_sql(using), params)]


def window_sql(using: str) -> str:
    return f"""{_standing(dialect.of(using))} WHERE ended_at IS NULL AND due_at <= %s AND (due_at, id) > (%s, %s)
        ORDER BY due_at, id LIMIT %s"""


def window(using: str, *, until_ms: int, after: tuple[int, int], limit: int) -> list[Standing]:
    """Live jobs due up to `until_ms`, behind the cursor (due_ms, id), oldest first: what belongs into the mirror."""
    d = dialect.of(using)
    params = [d.moment(until_ms), d.moment(after[0]), after[1], limit]
    return [Standing(*row) for row in _run(using, window_sql(using), params)]


def expired_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""{_standing(d)} WHERE ended_at IS NULL AND due_at <= {d.now} AND (due_at, id) > (%s, %s)
        AND state = {RESERVED} AND lease_until <= {d.now} ORDER BY due_at, id LIMIT %s"""


def expired(using: str, *, after: tuple[int, int], limit: int) -> list[Standing]:
    """Reserved jobs whose lease is over. A reserved job is always past its due time, so the due index finds it."""
    params = [dialect.of(using).moment(after[0]), after[1], limit]
    return [Standing(*row) for row in _run(using, expired_sql(using), params)]


def ready_topic_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""SELECT 1 FROM delaytasks_job WHERE ended_at IS NULL AND topic = %s AND due_at <= {d.now}
        AND (state = {DELAYED} OR lease_until <= {d.now}) ORDER BY due_at LIMIT 1"""


def has_ready(using: str, topic: str) -> bool:
    """Whether the topic has a job that is due and that nobody holds."""
    return bool(_run(using, ready_topic_sql(using), [topic]))


def next_due_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""SELECT {d.to_ms("due_at")} FROM delaytasks_job
        WHERE ended_at IS NULL AND due_at > {d.now} ORDER BY due_at, id LIMIT 1"""


def next_due_ms(using: str) -> int | None:
    """When the next job falls due, in ms; None if nothing is pending."""
    found = _run(using, next_due_sql(using), [])
    return found[0][0] if found else None
