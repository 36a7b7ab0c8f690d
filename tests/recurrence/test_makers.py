"""Any number of makers, rollbacks, kills and edits at the same time: each instant of each schedule once, and no gap."""

import contextlib
import functools
import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from delaytasks import cancel, clock, retry_dead
from delaytasks.db import schedules as statements
from delaytasks.models import Job, JobEvent, Schedule
from delaytasks.monitoring import health, job_collector
from delaytasks.recurrence import maker, schedules, statistics
from delaytasks.recurrence.definition import Definition
from delaytasks.states import State

from ..support.query_plans import plans_of
from .conftest import START

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.on_both, pytest.mark.usefixtures("tick")]
STEPS, EVERY = 25, 30  # of the clock, in seconds; two steps are a firing and a half
MOST_STEPS = 500  # until a firing was cancelled and one retried; on a busy machine few are
MAKERS = 4


make = maker.make


class Killed(BaseException):
    """A process that ends in the middle of a transaction."""


def define(name: str, **options: Any) -> Schedule:
    return schedules.define(Definition(name=name, topic="tick", **{"every": EVERY} | options))


def made(name: str) -> Counter[str]:
    """Return how often each firing of a schedule was made, apart from those that a change withdrew."""
    withdrawn = JobEvent.objects.filter(outcome="cancelled", reason="schedule changed").values("job_id")
    jobs = Job.objects.filter(key__startswith=f"{name}@").exclude(pk__in=withdrawn)
    return Counter(job.key.partition("@")[2] for job in jobs)


def expected(name: str) -> list[str]:
    """Return the label of each instant from the start to the end of the schedule's chain."""
    until = Schedule.objects.get(name=name).made_until
    count = (until - START) // timedelta(seconds=EVERY)
    moments = (START + timedelta(seconds=EVERY * n) for n in range(1, count + 1))
    return [moment.strftime("%Y-%m-%dT%H:%M:%S") for moment in moments]


def test_makers_rollbacks_edits_retries_and_cancels_make_each_instant_once(db_clock, monkeypatch):
    names = [f"s{n}" for n in range(12)]
    for name in names:
        define(name, start=START)
    dice, stopped, errors = random.Random(5), threading.Event(), []
    insert = statements.insert_firings

    def insert_or_fail(using: str, rows: Any) -> Any:
        chance = dice.random()
        if chance < 0.1:
            raise Killed
        stored = insert(using, rows)
        if chance < 0.2:
            raise Killed
        return stored

    def repeat(act: Callable[[], Any]) -> None:
        try:
            while not stopped.wait(0.01):  # SQLite's lock is not fair: without a pause, makers would keep it
                with contextlib.suppress(Killed, OperationalError):  # OperationalError: SQLite is busy
                    act()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    def edit() -> None:
        name = dice.choice(names[:6])
        match dice.randrange(3):
            case 0:
                define(name, start=START, body={"n": dice.random()})
            case 1:
                define(name, start=START, missed=dice.choice(["all", "last"]))
            case 2:
                with transaction.atomic():
                    define(name, start=START, body={"n": dice.random()})
                    transaction.set_rollback(True)

    done: Counter[str] = Counter()

    def operate() -> None:
        """Let a due firing die and retry it, or cancel one, due or ahead."""
        jobs = list(Job.objects.live())
        if not jobs:
            return
        job = dice.choice(jobs)
        due_ms = clock.to_ms(job.due_at)
        if dice.random() < 0.5:
            done["cancelled"] += cancel("tick", job.key, by="anna") == "cancelled"
        elif due_ms <= db_clock.now_ms:
            dead: dict[str, Any] = {"state": State.DEAD, "attempt": 1, "ended_at": job.due_at, "died_at": job.due_at}
            if Job.objects.filter(pk=job.pk, state=State.DELAYED).update(**dead):
                done["retried"] += bool(retry_dead(job_id=job.pk))

    monkeypatch.setattr(statements, "insert_firings", insert_or_fail)
    acts = [lambda: maker.make_due("default")] * MAKERS + [edit, operate]
    threads = [threading.Thread(target=repeat, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    waiting, steps = threading.Event(), 0
    while steps < STEPS or (min(done["cancelled"], done["retried"]) == 0 and steps < MOST_STEPS):
        waiting.wait(0.06)
        db_clock.advance(seconds=EVERY * 2 / 3)
        steps += 1
    stopped.set()
    for thread in threads:
        thread.join(30)
    assert not errors
    monkeypatch.setattr(statements, "insert_firings", insert)
    maker.make_due("default")
    for name in names:
        assert made(name) == Counter(expected(name))
        assert len(made(name)) >= STEPS * 2 // 3
    assert min(done["cancelled"], done["retried"]) > 0


@pytest.mark.parametrize("function", ["advance", "insert_firings"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_maker_that_is_killed_at_a_statement_leaves_nothing_half_made(db_clock, monkeypatch, function, when):
    define("s", start=START)
    db_clock.advance(seconds=EVERY)
    original = getattr(statements, function)

    def killed(*args: Any) -> Any:
        if when == "after":
            original(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(statements, function, killed)
        with pytest.raises(Killed):
            maker.make_due("default")
    assert made("s") == Counter(["2030-01-01T00:00:30"])
    maker.make_due("default")
    assert made("s") == Counter(expected("s"))
    assert len(made("s")) == 2


def test_a_maker_whose_view_is_old_makes_nothing(db_clock):
    row = define("s", start=START)
    db_clock.advance(seconds=EVERY)
    plan = maker._plan(row, db_clock.now_ms)
    maker.make_due("default")
    assert maker._store("default", [row], {row.pk: plan}) == 0
    assert made("s") == Counter(expected("s"))


def test_a_maker_that_planned_before_an_edit_makes_nothing_of_the_old_definition(db_clock):
    """The chain ends where it ended before the edit: only the version tells."""
    old = define("s", start=START, body={"n": 1})
    plan = maker._plan(old, db_clock.now_ms)
    new = define("s", start=START, body={"n": 2})
    assert new.made_until == old.made_until
    assert maker._store("default", [old], {old.pk: plan}) == 0
    assert list(Job.objects.filter(state=State.DELAYED).values_list("body", flat=True)) == [{"n": 2}]
    assert Schedule.objects.get().version == new.version


def test_a_rolled_back_definition_leaves_no_job(db_clock):
    with pytest.raises(Killed), transaction.atomic():
        define("s")
        raise Killed
    assert not Job.objects.exists()
    assert not Schedule.objects.exists()


def test_many_schedules_are_made_in_pages(db_clock, django_assert_max_num_queries):
    for n in range(5):
        define(f"s{n}", start=START)
    rows = list(Schedule.objects.all())
    copies = [Schedule(**{f.attname: getattr(rows[0], f.attname) for f in Schedule._meta.fields if f.name != "id"})
              for _ in range(450)]  # fmt: skip
    for n, copy in enumerate(copies):
        copy.name = f"copy{n}"
    Schedule.objects.bulk_create(copies)
    db_clock.advance(seconds=EVERY)
    with django_assert_max_num_queries(25):
        assert maker.make_due("default") == 455


def test_schedules_with_second_grain_do_not_wait_for_a_herd(db_clock, monkeypatch):
    """A herd that is due at noon is made in short passes; those with second grain are made first in each."""
    herd = [define(f"hourly{n}", every=None, cron="0 * * * *") for n in range(3)]
    frequent = [define("every", every=1), define("period", every=None, delay=1, period=30, repeat=None),
                define("rule", every=None, rrule="FREQ=MINUTELY;BYSECOND=0,30")]  # fmt: skip
    db_clock.set(clock.to_ms(max(row.made_until for row in herd)))
    made: list[list[int]] = []
    monkeypatch.setattr(maker, "make", lambda using, ids: make(using, made.append(sorted(ids)) or ids))
    monkeypatch.setattr(maker, "PAGE", 2)
    monkeypatch.setattr(maker, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(maker, "_passed", {})
    maker.make_due_throttled("default")
    number = next(n for n, ids in enumerate(made) if set(ids) <= {row.pk for row in herd})
    assert made[number:] == [[row.pk for row in herd[:2]]]
    assert {pk for ids in made[:number] for pk in ids} == {row.pk for row in frequent}
    maker.make_due_throttled("default")  # goes on at once
    assert made[-1] == [herd[2].pk]


@pytest.mark.only_on("postgresql")
def test_finding_due_schedules_reads_only_those(db_clock):
    from delaytasks.db import dialects

    row = define("s")
    fields = {f.attname: getattr(row, f.attname) for f in Schedule._meta.fields if f.name not in ("id", "name")}
    later = fields | {"made_until": START + timedelta(days=9)}
    Schedule.objects.bulk_create((Schedule(name=f"s{n}", **later) for n in range(5_000)), batch_size=5000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delaytasks_schedule")
        cursor.execute("EXPLAIN " + statements.due_sql("default", is_frequent=False), [10_000, 200])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "delaytasks_schedule_due" in plan
    assert "Seq Scan" not in plan
    assert dialects.is_fixed()


@pytest.mark.only_on("postgresql")
def test_the_board_the_exporter_and_health_do_not_read_the_series(db_clock):
    """Each customer may have a series; schedules are few."""
    row = define("s")
    fields = {f.attname: getattr(row, f.attname) for f in Schedule._meta.fields if f.name not in ("id", "name")}
    series = (Schedule(name=f"s{n}", **fields | {"series_key": f"s{n}"}) for n in range(5_000))
    Schedule.objects.bulk_create(series, batch_size=5000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delaytasks_schedule")
    named, ended_series = "delaytasks_schedule_named", "delaytasks_schedule_over"
    problems = functools.partial(health._schedule_problems, "default", db_clock.now_ms)
    for read in (statistics._compute, "default", None), (job_collector._read, "default"), (problems,):
        plans = [plan for plan in plans_of(functools.partial(*read)) if '"series_key" IS NULL' in plan.sql]
        assert plans
        for plan in plans:
            assert set(plan.indexes) in ({named}, {named, ended_series}), plan


@pytest.mark.parametrize("changed", ["version", "made_until"])
def test_a_schedule_that_has_changed_since_it_was_read_is_not_advanced(db_clock, changed):
    """Its new firing would have the body or the times of before."""
    row = define("a", start=START)
    seen = statements.Advance(row.pk, clock.to_ms(row.made_until), row.version, clock.to_ms(row.made_until), "", 0, "")
    Schedule.objects.update(**{changed: getattr(row, changed) + (1 if changed == "version" else timedelta(seconds=1))})
    assert statements.advance("default", [seen]) == set()
    Schedule.objects.update(**{changed: getattr(row, changed)})
    assert statements.advance("default", [seen]) == {row.pk}
