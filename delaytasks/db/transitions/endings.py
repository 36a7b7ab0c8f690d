"""reserved → finished, delayed or dead: an attempt ends, or its job is taken back."""

import functools
from collections.abc import Sequence
from typing import Any

from ...outcomes import TAKEN_BACK_ERRORS
from .. import dialects
from ..lookups import lease_is_over, run_order
from .claims import choice_sql, claim_first, claim_parts, in_time_condition, locked_first
from .events import EVENT_COLUMNS, record
from .next_run import HAS_NEXT_RUN, next_run
from .rows import DEAD, DELAYED, RESERVED, Abandoned, Claimed, Ended, Ending, Event, TakenBack

_ENDING_KINDS = ["bigint", "int", "smallint", "bigint", "int", "text", "text", "bigint", "bigint"] + ["text"] * 4
_ENDING_KINDS += ["bigint", "int"]


def end_if_held(
    using: str, endings: Sequence[Ending], *, in_time: bool = False, relaxed: bool = False, not_again: bool = False
) -> dict[int, Ended]:
    """reserved → finished, delayed or dead, with an event, for attempts that still hold their jobs.

    A job that was scheduled again while it ran and stays live gets the earlier of both due times and the newer TTR and
    body, with no failures.

    in_time     refuse an attempt whose lease has ended, even if the job has not been taken back
    relaxed     the commit of this transaction does not wait for the disk (PostgreSQL)
    not_again   leave out jobs that were scheduled again

    Return {id: Ended}. An id is missing if the attempt no longer holds the job: its TTR passed and the job was taken
    back, or the attempt has ended.
    """
    d = dialects.get_dialect(using)
    endings = sorted(endings)
    ctes, update, params = _end_parts(d, endings, in_time=in_time, not_again=not_again)
    if d.writes_in_with:
        sql = f"""{ctes}, {_recorded(update)}
        SELECT id, next_due_ms, now_ms, runs_again{_RELAX if relaxed else ""} FROM ended"""
        return {row[0]: Ended(*row[1:4]) for row in dialects.run(using, sql, params)}
    ended = {row[0]: Ended(row[1], row[2], bool(row[3])) for row in dialects.run(using, ctes + update, params)}
    record(using, [_event(e, *ended[e.id][:2]) for e in endings if e.id in ended])
    return ended


def end_statement(d: dialects.Dialect, endings: Sequence[Ending]) -> dialects.Statement:
    """Return the statement of end_if_held(..., in_time=True, not_again=True), for a database where WITH may write.

    Each row that it returns has the id of a job and the fields of Ended.
    """
    ctes, update, params = _end_parts(d, sorted(endings), in_time=True, not_again=True)
    return f"{ctes}, {_recorded(update)} SELECT id, next_due_ms, now_ms, runs_again FROM ended", params


def _end_parts(
    d: dialects.Dialect, endings: Sequence[Ending], *, in_time: bool, not_again: bool
) -> tuple[str, str, list[Any]]:
    """Return the SQL of the CTEs with these endings, that of the UPDATE, and the parameters."""
    table, params = d.table(_ENDING_KINDS, endings)
    return *_end_sql(d, table, *locked_first(d, endings), in_time=in_time, not_again=not_again), params


def end_and_claim(
    using: str, ending: Ending, topic: str, ids: Sequence[int], worker: str, *, fenceable: bool = False,
    check_constraints: bool = False,
) -> tuple[dict[int, Ended], Claimed | None]:  # fmt: skip
    """End an attempt as end_if_held() and claim the next job as claim_first(), in one statement where possible.

    ids                 candidates for the next job; must not contain the job that ends
    check_constraints   first check the deferred constraints of the transaction (PostgreSQL). Raises IntegrityError

    Return (the result of end_if_held(), the claimed job). Nothing is claimed if the attempt no longer holds its job.
    On PostgreSQL a job that was scheduled again is not ended either, because its next run needs a second statement in
    the same transaction. The body of the claimed job is not parsed: call with_body() after the commit.
    """
    d = dialects.get_dialect(using)
    if not d.writes_in_with:
        ended = end_if_held(using, [ending])
        return ended, claim_first(using, topic, ids, worker, fenceable=fenceable) if ended else None
    table, params = d.table(_ENDING_KINDS, [ending])
    condition, candidates = d.among("id", ids)
    sql = _end_and_claim_sql(d, d.now, table, condition, fenceable, check_constraints)
    rows = dialects.run(using, sql, [*params, *candidates, topic, worker])
    if not rows:
        return {}, None
    job_id, next_due_ms, now_ms, *claimed = rows[0]
    return {job_id: Ended(next_due_ms, now_ms, False)}, None if claimed[0] is None else Claimed(*claimed)


@functools.lru_cache(maxsize=16)
def _end_and_claim_sql(
    d: dialects.Dialect, now: str, table: str, condition: str, fenceable: bool, check_constraints: bool
) -> str:
    """Return the SQL of end_and_claim(), cached because it runs once for each job.

    now   not used: makes the time that tests set a part of the cache's key
    """
    # The subquery is executed before the first row is read. All other parts of the statement depend on that row.
    check = "AND (SELECT delaytasks_check_constraints())" if check_constraints else ""
    ctes, update = _end_sql(d, table, "", "held", in_time=False, not_again=True, check=check)
    choice = choice_sql(d, f"{condition} AND EXISTS (SELECT 1 FROM ended)", f"{run_order(d)} LIMIT 1")
    claim_time = d.clock if check_constraints else d.now  # the check may have waited for a lock
    due, claim = claim_parts(d, choice, now=claim_time, fenceable=fenceable)
    return f"""{ctes}, {_recorded(update)}, {due}, claimed AS ({claim})
        SELECT ended.id, next_due_ms, now_ms, claimed.* FROM ended LEFT JOIN claimed ON true"""


def _end_sql(
    d: dialects.Dialect, table: str, cte: str, held: str, *, in_time: bool, not_again: bool = False, check: str = ""
) -> tuple[str, str]:
    """Return the SQL of the CTEs with the endings, and that of the UPDATE that reads them from the CTE `held`.

    not_again   leave out jobs that were scheduled again; the others have no next run to settle
    check       SQL of a further condition
    """
    ctes = f"""
        WITH held (job_id, token, next_state, delay_ms, failed, job_error,
                   outcome, was_due_ms, began_ms, by_worker, by_actor, trace, why, until_ms, polled)
        AS ({table}) {cte}"""
    next_due = d.plus_ms(d.now, "delay_ms")
    at_latest = f"{d.least}({next_due}, {d.greatest}({d.from_ms('until_ms')}, {d.now}))"
    due = f"CASE WHEN delay_ms IS NULL THEN due_at WHEN until_ms IS NULL THEN {next_due} ELSE {at_latest} END"
    answered = "polled = 1"
    if not_again:
        polls, condition = "polls = polls + polled", "AND NOT again"
    else:
        merge = f"again AND next_state = {DELAYED}"
        due = f"CASE WHEN {merge} THEN {d.least}({due}, {d.greatest}(again_due_at, {d.now})) ELSE {due} END"
        answered = f"{merge} OR {answered}"
        polls, condition = next_run(d, merge, "polls + polled"), ""
    update = f"""
        UPDATE delaytasks_job SET
            state = next_state, due_at = {due},
            ended_at = CASE WHEN next_state = {DELAYED} THEN NULL ELSE {d.now} END,
            died_at = CASE WHEN next_state = {DEAD} THEN {d.now} END,
            lease_until = NULL, error = job_error,
            failures = CASE WHEN {answered} THEN 0 ELSE failures + failed END, {polls}
        FROM {held} WHERE id = job_id AND attempt = token AND worker = by_worker AND state = {RESERVED}
            {in_time_condition(d, in_time)} {condition} {check}
        RETURNING id, {d.to_ms("due_at")} AS next_due_ms, {d.to_ms(d.now)} AS now_ms,
            {HAS_NEXT_RUN} AS runs_again"""
    return ctes, update + (f", {held}.*" if d.writes_in_with else "")


def _recorded(update: str) -> str:
    """Return the SQL of two CTEs: `ended`, with the rows that the UPDATE ends, and the INSERT of their events."""
    return f"""ended AS ({update}), recorded AS (
            INSERT INTO delaytasks_jobevent ({EVENT_COLUMNS})
            SELECT id, outcome, token, was_due_ms, now_ms, began_ms,
                CASE WHEN next_state = {DELAYED} THEN next_due_ms END, by_worker, by_actor, trace, why FROM ended)"""


_RELAX = ", set_config('synchronous_commit', 'off', true)"  # until the transaction ends


def _event(e: Ending, next_due_ms: int, now_ms: int) -> Event:
    next_ms = next_due_ms if e.state == DELAYED else None
    return Event(
        e.id, e.outcome, e.attempt, e.due_ms, now_ms, e.reserved_ms, next_ms, e.worker, e.actor, e.trace, e.reason
    )


def expire(using: str, attempts: Sequence[Abandoned], error: str) -> dict[int, TakenBack]:
    """reserved → delayed, ready or dead, for jobs whose lease has ended. Does not record events.

    error   stored in the row, if the handler was called

    A job is ready at once, unless its previous attempt was also taken back: then it waits for `delay_ms`. A job
    of a group is charged no failure, because another job of the group may be the cause; it runs alone next time. A job
    that was scheduled again while it ran and stays live is ready at once, with the newer TTR and body and no failures.
    Return {id: TakenBack}. Locked rows are skipped, because their attempts are about to end.
    """
    return _take_back(using, attempts, error, f"AND {lease_is_over(dialects.get_dialect(using))}")


def take_back(using: str, attempts: Sequence[Abandoned], error: str) -> dict[int, TakenBack]:
    """reserved → delayed, ready or dead, as expire(), for jobs whose worker is dead, whatever their lease."""
    return _take_back(using, attempts, error, "")


def _take_back(using: str, attempts: Sequence[Abandoned], error: str, condition: str) -> dict[int, TakenBack]:
    d = dialects.get_dialect(using)
    table, params = d.table(["bigint", "int", "int", "bigint", "bigint", "int"], sorted(attempts))
    held = f"state = {RESERVED} {condition}"
    charged = "(was_called = 1 AND NOT grouped)"
    dead = f"({charged} AND failures + 1 >= max_attempts)"
    merge = f"(again AND NOT {dead})"
    waits = f"{charged} AND NOT {dead} AND NOT {merge} AND failures > 0 AND error IN ({_TAKEN_BACK_CODES_SQL})"
    sql = f"""
        WITH held (job_id, token, max_attempts, delay_ms, within_ms, was_called) AS ({table}),
        locked AS MATERIALIZED (
            SELECT id AS locked_id FROM delaytasks_job JOIN held ON id = job_id AND attempt = token
            WHERE {held} ORDER BY id {d.skip_locked and d.lock + " OF delaytasks_job SKIP LOCKED"})
        UPDATE delaytasks_job SET
            failures = CASE WHEN {merge} THEN 0 WHEN {charged} THEN failures + 1 ELSE failures END,
            due_at = CASE WHEN {waits} THEN {_next_due(d)} ELSE due_at END,
            alone = alone OR grouped, grouped = false, lease_until = NULL,
            error = CASE WHEN was_called = 1 THEN %s ELSE error END, {next_run(d, merge)},
            state = CASE WHEN {dead} THEN {DEAD} ELSE {DELAYED} END,
            ended_at = CASE WHEN {dead} THEN {d.now} END,
            died_at = CASE WHEN {dead} THEN {d.now} END
        FROM held JOIN locked ON locked_id = job_id WHERE id = job_id AND attempt = token AND {held}
        RETURNING id, state, {d.to_ms(d.now)}, {HAS_NEXT_RUN}"""
    return {row[0]: TakenBack(row[1], row[2], bool(row[3])) for row in dialects.run(using, sql, [*params, error])}


_TAKEN_BACK_CODES_SQL = ", ".join(f"'{code.value}'" for code in TAKEN_BACK_ERRORS)


def _next_due(d: dialects.Dialect) -> str:
    """Return the SQL of the due time after `delay_ms`, limited by `within_ms`."""
    since = f"{d.greatest}(coalesce(replaced_at, created_at), created_at)"
    due, limit = d.plus_ms(d.now, "delay_ms"), d.plus_ms(since, "within_ms")
    return f"CASE WHEN within_ms IS NULL THEN {due} ELSE {d.least}({due}, {d.greatest}({limit}, {d.now})) END"
