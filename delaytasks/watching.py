"""How jobs stand by the database: what guards, claims and the engine without a mirror read. Nothing here changes a row.

Pages go by the cursor (due_ms, id), as the index of live rows does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from . import dialect
from .states import State

DELAYED, RESERVED = int(State.DELAYED), int(State.RESERVED)


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


def _standing(d: dialect.Dialect) -> str:
    return f"""SELECT id, topic, state, attempt, failures, {d.to_ms("due_at")}, {d.to_ms("lease_until")},
        {d.to_ms("reserved_at")}, {d.to_ms(d.now)} FROM delaytasks_job"""


def stand(using: str, ids: Sequence[int]) -> list[Standing]:
    """How these jobs stand, ended ones too; an id that no row knows is left out."""
    d = dialect.of(using)
    these, params = d.among("id", ids)
    return [Standing(*row) for row in dialect.run(using, f"{_standing(d)} WHERE {these}", params)]


def overdue_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""{_standing(d)} WHERE ended_at IS NULL AND due_at <= {d.plus_ms(d.now, "%s")} AND (due_at, id) > (%s, %s)
        AND (state = {DELAYED} OR lease_until <= {d.now}) ORDER BY due_at, id LIMIT %s"""


def overdue(using: str, *, age_ms: int, after: tuple[int, int], limit: int) -> list[Standing]:
    """Live jobs that are due for `age_ms` or longer and that nobody holds, behind the cursor (due_ms, id)."""
    due_ms, job_id = after
    params = [-age_ms, dialect.of(using).moment(due_ms), job_id, limit]
    return [Standing(*row) for row in dialect.run(using, overdue_sql(using), params)]


def window_sql(using: str) -> str:
    return f"""{_standing(dialect.of(using))} WHERE ended_at IS NULL AND due_at <= %s AND (due_at, id) > (%s, %s)
        ORDER BY due_at, id LIMIT %s"""


def window(using: str, *, until_ms: int, after: tuple[int, int], limit: int) -> list[Standing]:
    """Live jobs due up to `until_ms`, behind the cursor (due_ms, id), oldest first: what belongs into the mirror."""
    d = dialect.of(using)
    params = [d.moment(until_ms), d.moment(after[0]), after[1], limit]
    return [Standing(*row) for row in dialect.run(using, window_sql(using), params)]


def expired_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""{_standing(d)} WHERE ended_at IS NULL AND due_at <= {d.now} AND (due_at, id) > (%s, %s)
        AND state = {RESERVED} AND lease_until <= {d.now} ORDER BY due_at, id LIMIT %s"""


def expired(using: str, *, after: tuple[int, int], limit: int) -> list[Standing]:
    """Reserved jobs whose lease is over. A reserved job is always past its due time, so the due index finds it."""
    params = [dialect.of(using).moment(after[0]), after[1], limit]
    return [Standing(*row) for row in dialect.run(using, expired_sql(using), params)]


def ready_topic_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""SELECT 1 FROM delaytasks_job WHERE ended_at IS NULL AND topic = %s AND due_at <= {d.now}
        AND (state = {DELAYED} OR lease_until <= {d.now}) ORDER BY due_at LIMIT 1"""


def has_ready(using: str, topic: str) -> bool:
    """Whether the topic has a job that is due and that nobody holds."""
    return bool(dialect.run(using, ready_topic_sql(using), [topic]))


def next_due_sql(using: str) -> str:
    d = dialect.of(using)
    return f"""SELECT {d.to_ms("due_at")} FROM delaytasks_job
        WHERE ended_at IS NULL AND due_at > {d.now} ORDER BY due_at, id LIMIT 1"""


def next_due_ms(using: str) -> int | None:
    """When the next job falls due, in ms; None if nothing is pending."""
    found = dialect.run(using, next_due_sql(using), [])
    return found[0][0] if found else None
