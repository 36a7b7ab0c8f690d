"""Jobs that will fall due, counted by the database."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from delaytasks.models import Job
from delaytasks.pipeline import schemas
from delaytasks.pipeline.sources import due_jobs, snapshot
from delaytasks.pipeline.sources.database import Database
from delaytasks.states import State

from ..conftest import at, ms

NOW, UNTIL = ms("02-01 12:00:30"), ms("02-01 13:00")


@pytest.mark.on_both
def test_due_jobs_are_counted_per_minute_and_overdue_jobs_in_the_first(
    database: Database, job: Callable[..., Job]
) -> None:
    with snapshot.take(database) as empty:
        none = due_jobs.count_by_minute(empty, UNTIL)
    assert (none.schema.names, none.num_rows) == (schemas.DUE.names, 0)

    due = ["12:00:59.999", "12:01", "11:00", "12:00:30", "13:00", "12:00:30.001"]
    for number, time in enumerate(due):
        job(f"order:{number}", due_at=at(f"02-01 {time}"))
    job("reserved", state=State.RESERVED, due_at=at("02-01 12:02"))
    job("finished", state=State.FINISHED, due_at=at("02-01 12:02"))
    job("other", topic="refund.ask", due_at=at("02-01 12:59:59.999"))
    with snapshot.take(database) as taken:
        found = due_jobs.count_by_minute(replace(taken, now_ms=NOW), UNTIL)

    assert found.sort_by([("topic", "ascending"), ("minute_at", "ascending")]).to_pylist() == [
        {"topic": "order.close", "minute_at": at("02-01 12:00"), "due": 2, "overdue": 2},
        {"topic": "order.close", "minute_at": at("02-01 12:01"), "due": 1, "overdue": 0},
        {"topic": "refund.ask", "minute_at": at("02-01 12:59"), "due": 1, "overdue": 0},
    ]
