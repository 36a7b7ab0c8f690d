"""The guarded statements: each changes the state of jobs in one UPDATE, whose WHERE requires the state before.

If no row was changed, another transaction has changed the job first. Statements that change several rows lock them in
id order, so that they cannot deadlock. Except for a single row, the SQL is the same for any number of rows, so that
PostgreSQL plans it once. Queries for display are in querysets.py.

Statements by id have no condition on ended_at. The condition on a live state implies it, and with stale statistics the
planner would prefer the partial index of live rows and read all of it.
"""

from .changes import (
    Cancel,
    cancel_dead,
    cancel_delayed,
    cancel_each,
    cancel_live,
    fence,
    move_delayed,
    retry_if_dead,
)
from .claims import claim, claim_first, defer, find_claimed, renew_if_held, unclaim
from .endings import end_and_claim, end_if_held, end_statement, expire, take_back
from .events import EVENT_COLUMNS, record
from .insertion import NEW_KINDS, current_producer, insert_new, new_due, produced_by, replace_delayed, store_next_runs
from .next_run import ignored_next_runs_sql, insert_next_runs, settle_ignored_next_runs, withdraw_next_runs
from .reads import (
    attempts_sql,
    find_attempt,
    find_by_id,
    find_latest,
    find_live,
    is_live,
    lock_delayed,
    lock_in_state,
    lock_live,
    to_attempt,
)
from .rows import (
    CANCELLED,
    DEAD,
    DELAYED,
    FINISHED,
    RESERVED,
    Abandoned,
    AttemptRow,
    Cancelled,
    Claimed,
    Ended,
    Ending,
    Event,
    JobRow,
    NewJob,
    StoredJob,
    TakenBack,
    with_body,
)
