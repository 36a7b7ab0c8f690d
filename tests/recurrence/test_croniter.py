"""croniter, another library, agrees with ours except where it is listed why not.

data/croniter.txt has the cases of its own tests. DIFFERENT has every expression of EXPRESSIONS, and every change of
clocks, where the two differ, with the reason.
"""

import warnings
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from delaytasks.exceptions import BadSchedule
from delaytasks.recurrence.cron import Cron

from .tables import at, follow, rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from croniter import CroniterError, croniter

EXPRESSIONS = [
    "* * * * *", "*/5 * * * *", "*/7 * * * *", "30 * * * *", "0,30 * * * *", "10-20 * * * *", "10-20/3 * * * *",
    "5/15 * * * *", "0 9 * * *", "30 2 * * *", "0 9,17 * * *", "0 9-17 * * 1-5", "0 */2 * * *", "0 */5 * * *",
    "30 4 1,15 * *", "30 4 1,15 * 5", "0 0 1 1 *", "0 0 29 2 *", "0 0 31 * *", "0 0 L * *", "0 12 * * 0",
    "0 12 * * 7", "0 12 * * sun", "0 12 * * mon-fri", "0 12 * jan,jul *", "0 12 * 3-9/2 *", "0 0 * * 1#2",
    "0 0 * * 5#5", "0 0 * * L5", "0 0 13 * 5", "0 0 */2 * 1", "0 0 1-7 * */7", "*/20 9-17 * * 1-5", "59 23 * * *",
]  # fmt: skip
STARTS = {
    "ordinary": ("UTC", "2024-01-17T10:03:20"),
    "gap": ("Europe/Berlin", "2026-03-28T23:50"),
    "overlap": ("Europe/Berlin", "2026-10-25T00:50"),
}
ONCE = "croniter runs a fixed time twice in an overlap; Debian's cron and ours once"
OR = "with a step in one day field, croniter runs if either matches; Debian's cron and ours if both match"
STEP = "in a gap croniter moves a step to its end; Debian's cron and ours leave it out, as elapsed time"
SYNTAX = "croniter's way to write the last Friday; cronsim's is 5L"
DIFFERENT = {
    ("30 2 * * *", "overlap"): ONCE, ("0 */2 * * *", "gap"): STEP,
    ("0 0 * * L5", "ordinary"): SYNTAX, ("0 0 * * L5", "gap"): SYNTAX, ("0 0 * * L5", "overlap"): SYNTAX,
    ("0 0 */2 * 1", "ordinary"): OR, ("0 0 */2 * 1", "gap"): OR, ("0 0 */2 * 1", "overlap"): OR,
    ("0 0 1-7 * */7", "ordinary"): OR, ("0 0 1-7 * */7", "gap"): OR, ("0 0 1-7 * */7", "overlap"): OR,
}  # fmt: skip


def by_croniter(expression: str, start: datetime, count: int) -> list[datetime]:
    iterator = croniter(expression, start, ret_type=datetime)
    return [iterator.get_next().astimezone(UTC) for _ in range(count)]


def by_us(expression: str, zone: str, start: datetime, count: int) -> list[datetime] | str:
    try:
        return [firing.due for firing in follow(Cron(expression, ZoneInfo(zone)), start, count)]
    except BadSchedule as error:
        return str(error)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_libraries_agree_except_where_listed(expression, start):
    zone, text = STARTS[start]
    moment = at(text, zone)
    theirs = by_croniter(expression, moment.astimezone(ZoneInfo(zone)), 60)
    assert (by_us(expression, zone, moment, 60) == theirs) == ((expression, start) not in DIFFERENT)


@pytest.mark.parametrize("row", rows("croniter.txt"), ids=lambda row: f"{row[0]} {row[1]}")
def test_the_cases_of_croniters_own_tests(row):
    _name, expression, zone, start, expected = row
    moment = at(start, zone)
    ours = by_us(expression, zone, moment, 30)
    if expected == "refused by both":
        with pytest.raises(CroniterError):
            by_croniter(expression, moment, 30)
    else:
        theirs = by_croniter(expression, moment.astimezone(ZoneInfo(zone)), 30)
        assert (ours == theirs) == (expected == "same")
    assert isinstance(ours, str) == expected.startswith("refused")
