"""The events of attempts and changes, one row for each."""

from collections.abc import Iterable

from ...states import Outcome
from .. import dialects
from .rows import Event

_ROWS = 1000  # rows of one INSERT; SQLite allows 32,766 parameters
# In the order of the fields of Event.
EVENT_COLUMNS = "job_id, outcome, attempt, due_ms, done_ms, reserved_ms, next_due_ms, worker, actor, error, reason"
RECORD_CANCELLED = f"""
    INSERT INTO delaytasks_jobevent ({EVENT_COLUMNS})
    SELECT id, '{Outcome.CANCELLED}', attempt, was_due_ms, now_ms, reserved_ms, NULL, '',
        CAST(%s AS text), '', CAST(%s AS text) FROM ended"""
_EVENT_KINDS = ["bigint", "text", "int", "bigint", "bigint", "bigint", "bigint", "text", "text", "text", "text"]


def record(using: str, events: Iterable[Event]) -> None:
    """Insert events, in the caller's transaction."""
    rows = list(events)
    for start in range(0, len(rows), _ROWS):
        table, params = dialects.get_dialect(using).table(_EVENT_KINDS, rows[start : start + _ROWS])
        dialects.run(using, f"INSERT INTO delaytasks_jobevent ({EVENT_COLUMNS}) {table}", params)
