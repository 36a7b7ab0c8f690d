"""Count the jobs that will fall due, by topic and minute.

These jobs are live, so they are not in the archive. The database counts them: this is quicker than reading the rows.
"""

import pyarrow

from ...clock import from_ms
from ...states import State
from .. import schemas
from . import pushdown
from .snapshot import Snapshot

MINUTE_MS = 60_000
DUE_MS = {
    "postgresql": "CAST(floor(extract(epoch FROM due_at) * 1000) AS bigint)",
    "sqlite": "CAST(round((julianday(due_at) - 2440587.5) * 86400000) AS integer)",
}
BY_MINUTE = """
    SELECT topic, minute_ms,
        sum(CASE WHEN due_ms > {{}} THEN 1 ELSE 0 END), sum(CASE WHEN due_ms > {{}} THEN 0 ELSE 1 END)
    FROM (
        SELECT topic, due_ms, CASE WHEN due_ms > {{}} THEN due_ms ELSE {{}} END / {minute} * {minute} AS minute_ms
        FROM (
            SELECT topic, {due_ms} AS due_ms FROM delaytasks_job WHERE ended_at IS NULL AND state = {state}
            AND due_at < {until}
        ) AS live
    ) AS timed GROUP BY topic, minute_ms"""


def count_by_minute(snapshot: Snapshot, until_ms: int) -> pyarrow.Table:
    """Return the number of jobs of each topic that fall due in each minute before until_ms.

    until_ms   in ms since 1970

    The result has the columns schemas.DUE. Overdue jobs are counted in the first minute, which contains the time of the
    snapshot. Reserved jobs are not counted: they have fallen due already.
    """
    now, vendor = snapshot.now_ms, snapshot.database.vendor
    until = pushdown.literal(from_ms(until_ms), vendor)
    sql = BY_MINUTE.format(minute=MINUTE_MS, due_ms=DUE_MS[vendor], state=int(State.DELAYED), until=until)
    topics, minutes, due, overdue = list(zip(*snapshot.query(sql, [now] * 4), strict=True)) or [()] * 4
    times = pyarrow.array([ms * 1_000 for ms in minutes], pyarrow.int64()).cast(pyarrow.timestamp("us", "UTC"))
    numbers = [pyarrow.array(map(int, each), pyarrow.int64()) for each in (due, overdue)]
    return pyarrow.table([pyarrow.array(topics, pyarrow.string()), times, *numbers], schemas.DUE.names)
