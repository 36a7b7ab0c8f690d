"""Nothing is made, moved or cancelled for a declaration until its fingerprint is applied."""

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Q, Value
from django.db.models.functions import Concat

from delaytasks import Calendar, databases, run_now, schedule, timeout
from delaytasks.calendars import minutes, public_holidays, registry
from delaytasks.clock import to_ms
from delaytasks.db import calendar_days
from delaytasks.models import AuditEntry, CalendarDay, Job
from delaytasks.models import Declaration as Applied
from delaytasks.timeouts import declarations, fire, reconcile, statements
from delaytasks.timeouts.declarations import Declaration
from tests.db.test_isolation_levels import alter
from tests.support.locks import committed_meanwhile

from .app.models import Order
from .conftest import HALF_HOUR, START, live

pytestmark = pytest.mark.django_db(transaction=True)
CLOSE = "declared.close"


def declare(**options: Any) -> list[Any]:
    """Declare the timeout, in place of another version of it. Returns a list of the rows that its handler received."""
    from delaytasks import handlers

    declarations.unregister(CLOSE)
    handlers.unregister(CLOSE)
    called: list[Any] = []
    timeout(Order, topic=CLOSE, **({"on": "created_at", "after": HALF_HOUR} | options))(
        lambda order, job: called.append(order)
    )
    return called


def command(*arguments: str) -> Any:
    out = StringIO()
    call_command("delaytasks", "timeouts", *arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def test_nothing_is_made_before_it_is_applied(db_clock: Any) -> None:
    declare()
    order = Order.objects.create(created_at=START)
    assert command("plan") == [
        {"topic": CLOSE, "state": "new", "make": 1, "move": 0, "cancel": 0, "overdue": 0}
    ]  # fmt: skip
    assert command("reconcile") == [{"timeout": CLOSE, "made": 0, "moved": 0, "cancelled": 0, "locked": 0}]
    assert live() == {}
    assert command("apply") == [{"timeout": CLOSE, "made": 1, "moved": 0, "cancelled": 0, "locked": 0}]
    assert list(live()) == [f"order:{order.pk}"]
    assert command("plan")[0]["state"] == "applied"
    Order.objects.create(created_at=START)
    assert len(live()) == 2  # in force for signals, too


def test_commands_are_in_the_audit_log(db_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "carol")
    declare()
    overdue_orders()
    with pytest.raises(CommandError, match="passed already"):
        command("apply")
    assert not AuditEntry.objects.exists()
    command("apply", "--overdue", "run")
    command("apply")  # all are in force
    command("reconcile", CLOSE)
    declarations.unregister(CLOSE)
    command("forget", CLOSE)
    applied, reconciled, forgotten = AuditEntry.objects.order_by("pk")
    jobs = {CLOSE: {"made": 21, "moved": 0, "cancelled": 0}}
    assert (applied.action, applied.actor) == ("timeouts.applied", "command:carol")
    assert applied.after == {"topics": [CLOSE], "overdue": "run", "jobs": jobs}
    assert (reconciled.action, reconciled.topic) == ("timeouts.reconciled", CLOSE)
    assert (forgotten.action, forgotten.topic, forgotten.after["cancelled"]) == ("timeouts.forgotten", CLOSE, 21)


def test_a_process_with_another_fingerprint_writes_nothing(db_clock: Any) -> None:
    declare()
    command("apply")
    order = Order.objects.create(created_at=START)
    declare(after=2 * HALF_HOUR)
    order.save()
    order.delete()
    Order.objects.create(created_at=START)
    command("reconcile")
    assert list(live().values()) == [START + HALF_HOUR]
    assert command("plan") == [{"topic": CLOSE, "state": "changed", "make": 1, "move": 0, "cancel": 1, "overdue": 0}]
    command("apply")
    assert list(live().values()) == [START + 2 * HALF_HOUR]


def test_debug_and_the_test_kit_apply_by_themselves(db_clock: Any, settings: Any) -> None:
    declare()
    settings.DEBUG = True
    Order.objects.create(created_at=START)
    assert len(live()) == 1


def overdue_orders() -> None:
    Order.objects.bulk_create([Order(created_at=START - HALF_HOUR * 4, note=str(n)) for n in range(20)])
    Order.objects.create(created_at=START)


def test_apply_asks_what_becomes_of_overdue_rows(db_clock: Any) -> None:
    declare()
    overdue_orders()
    with pytest.raises(CommandError, match=r"20 rows of declared\.close has passed already"):
        command("apply")
    assert (live(), Applied.objects.count()) == ({}, 0)


def test_apply_names_a_single_overdue_row(db_clock: Any) -> None:
    declare()
    Order.objects.create(created_at=START - HALF_HOUR * 4)
    with pytest.raises(CommandError, match=r"the due time of 1 row of declared\.close has passed already"):
        command("apply")


@pytest.mark.parametrize(("overdue", "jobs"), [("run", 21), ("skip", 1), ("spread=10m", 21)])
def test_overdue_rows_are_run_skipped_or_spread(db_clock: Any, overdue: str, jobs: int) -> None:
    declare()
    overdue_orders()
    command("apply", "--overdue", overdue)
    due = sorted(live().values())[:-1]
    assert len(live()) == jobs
    if overdue == "run":
        assert set(due) == {START}
    elif due:
        assert len(set(due)) > 10
        assert due[0] >= START
        assert due[-1] <= START + timedelta(minutes=10)
    db_clock.advance(seconds=60)
    command("reconcile")
    assert len(live()) == jobs
    late = Order.objects.create(created_at=START - HALF_HOUR / 2)  # due after it was applied
    assert f"order:{late.pk}" in live()


@pytest.mark.parametrize("action", ["plan", "apply", "reconcile", "forget"])
def test_a_second_topic_is_refused(action: str) -> None:
    with pytest.raises(CommandError, match="Give one topic only"):
        command(action, "declared.close", "declared.remind")


@pytest.mark.parametrize(
    ("overdue", "message"),
    [("never", "not run, skip"), ("spread", "not run, skip"), ("spread=x", "not an age"),
     ("spread=0s", "more than 0")],
)  # fmt: skip
def test_a_wrong_overdue_is_refused(overdue: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        command("apply", "--overdue", overdue)


def test_an_unknown_timeout_is_a_usage_error_that_names_the_declared_ones() -> None:
    declare()
    with pytest.raises(CommandError, match=r"Declared: .*declared\.close"):
        command("plan", "nonsense")


def test_a_worker_with_another_fingerprint_runs_what_matches_and_leaves_the_rest(stage: Any, db_clock: Any) -> None:
    declare()
    command("apply")
    rows = [Order.objects.create(created_at=START, state=state) for state in ("open", "paid")]
    called = declare(after=HALF_HOUR / 2, while_=Q(state="open"))
    db_clock.advance(seconds=1800)
    stage.go()
    assert called == [rows[0]]
    job = Job.objects.get(ended_at=None)
    assert job.due_at == START + HALF_HOUR + timedelta(milliseconds=fire.NOT_APPLIED_RETRY_MS)
    assert (job.failures, job.declared_due, job.events.count()) == (0, START + HALF_HOUR, 0)


@pytest.mark.on_both
@pytest.mark.parametrize("changed", [{"while_": Q(state__in=["open", "new"])}, {"after": 4 * HALF_HOUR}])
def test_a_worker_with_another_fingerprint_never_runs_what_is_due_later(
    stage: Any, db_clock: Any, changed: dict[str, Any]
) -> None:
    declare(while_=Q(state="open"))
    command("apply")
    order = Order.objects.create(created_at=START)
    called = declare(**changed)
    if "while_" in changed:
        order.created_at += 3 * HALF_HOUR
        order.save()  # moves nothing: neither version's signals do
    db_clock.advance(seconds=1800)
    stage.go()
    assert called == []
    assert live() == {f"order:{order.pk}": START + HALF_HOUR + timedelta(seconds=5)}
    db_clock.advance(seconds=3 * 1800)
    stage.go()
    assert called == [order]


@pytest.mark.on_both
def test_a_job_that_is_deferred_again_and_again_waits_longer_each_time(stage: Any, db_clock: Any) -> None:
    declare()
    command("apply")
    order = Order.objects.create(created_at=START)
    called = declare(after=HALF_HOUR + timedelta(minutes=20))
    db_clock.advance(seconds=1800)
    waits = []
    while not called:
        stage.go()
        waits += [due.timestamp() - db_clock.now_ms / 1000 for due in live().values()]
        db_clock.advance(seconds=waits[-1] if waits else 0)
    # As late as it is already; at most 300 s, and not beyond the time at which this version runs it.
    assert waits == [5, 5, 10, 20, 40, 80, 160, 300, 300, 280]
    assert called == [order]


@pytest.mark.on_both
def test_a_worker_with_another_fingerprint_runs_what_a_person_moved_forward(stage: Any, db_clock: Any) -> None:
    declare(while_=Q(state="open"))
    command("apply")
    order = Order.objects.create(created_at=START)
    called = declare()
    run_now(CLOSE, f"order:{order.pk}")
    stage.go()
    assert called == [order]


def orders_were_purchases() -> None:
    """The jobs so far were made when the model had another name."""
    Job.objects.update(subject_label="declared.purchase", key=Concat(Value("purchase:"), "subject_pk"))
    Applied.objects.update(fingerprint="that of the other name")


@pytest.mark.on_both
def test_the_rows_of_a_renamed_model_keep_their_jobs_and_what_has_fired(stage: Any, db_clock: Any) -> None:
    called = declare()
    command("apply")
    fired = Order.objects.create(created_at=START - HALF_HOUR)
    stage.go()
    waiting = Order.objects.create(created_at=START)
    assert called == [fired]
    orders_were_purchases()
    of_another_model = Job.objects.create(
        topic=CLOSE, key="purchase:x", due_at=START + HALF_HOUR, ttr_ms=1000, created_at=START,
        subject_label="declared.customer", subject_pk="1",
    )  # fmt: skip
    assert command("plan") == [{"topic": CLOSE, "state": "changed", "make": 0, "move": 0, "cancel": 0, "overdue": 0}]
    assert Job.objects.filter(subject_label="declared.purchase").count() == 2
    assert command("apply") == [{"timeout": CLOSE, "made": 0, "moved": 0, "cancelled": 0, "locked": 0}]
    assert list(live()) == [f"order:{waiting.pk}", "purchase:x"]
    of_another_model.delete()
    fired.save()
    db_clock.advance(seconds=1800)
    stage.go()
    assert called == [fired, waiting]
    assert [job.subject for job in Job.objects.order_by("pk")] == [fired, waiting]


@pytest.mark.on_both
def test_a_job_of_the_former_name_does_not_fire_beside_one_of_the_new_name(stage: Any, db_clock: Any) -> None:
    called = declare()
    command("apply")
    order = Order.objects.create(created_at=START)
    orders_were_purchases()
    schedule(CLOSE, subject=order, delay=1800)
    command("apply")
    assert list(live()) == [f"order:{order.pk}", f"purchase:{order.pk}"]
    db_clock.advance(seconds=1800)
    stage.go()
    assert called == [order]
    former = Job.objects.get(key=f"purchase:{order.pk}")
    assert [(each.outcome, each.reason) for each in former.events.all()] == [("skipped", fire.GONE)]


@pytest.mark.on_both
def test_a_job_of_the_former_name_runs_or_waits_until_the_new_name_is_applied(stage: Any, db_clock: Any) -> None:
    declare()
    command("apply")
    orders = [Order.objects.create(created_at=START, state=state) for state in ("open", "paid")]
    orders_were_purchases()
    called = declare(while_=Q(state="open"))
    db_clock.advance(seconds=1800)
    stage.go()
    assert (called, list(live())) == ([orders[0]], [f"purchase:{orders[1].pk}"])
    command("apply")
    orders[0].save()
    assert (called, live()) == ([orders[0]], {})


def office(opens: str = "00:00-08:00", **terms: Any) -> Calendar:
    """Return the calendar of a version of the code. In START's week, Wednesday the 2nd is a working day."""
    registry.unregister("test office")
    return Calendar("test office", **({"tz": "UTC", "hours": {"mon-fri": opens}} | terms))


def at(minute: int, day: int = 1) -> datetime:
    return START.replace(day=day, minute=minute)


@pytest.mark.on_both
def test_other_hours_are_a_changed_declaration_and_never_run_it_early(stage: Any, db_clock: Any) -> None:
    declare(after=minutes(20), calendar=office())
    command("apply")
    order = Order.objects.create(created_at=START)
    called = declare(after=minutes(20), calendar=office("00:10-08:00"))
    order.save()  # this process writes nothing, and runs nothing before its own time
    assert live() == {f"order:{order.pk}": at(20)}
    db_clock.set(to_ms(at(20)))
    stage.go()
    assert (called, live()) == ([], {f"order:{order.pk}": at(20) + timedelta(seconds=5)})
    assert command("plan") == [{"topic": CLOSE, "state": "changed", "make": 0, "move": 1, "cancel": 0, "overdue": 0}]
    command("apply")
    assert live() == {f"order:{order.pk}": at(30)}
    earlier = declare(after=minutes(20), calendar=office())  # a worker that still has the hours of before
    order.save()
    db_clock.set(to_ms(at(30)))
    stage.go()
    assert earlier == [order]


@pytest.fixture
def closed_on() -> Iterator[Callable[..., None]]:
    """Let staff close the office on a day, without a signal if it is asked for."""

    def close(day: int, *, signal: bool = True) -> None:
        new = CalendarDay(calendar="test office", day=START.replace(day=day).date())
        if signal:
            new.save()
        else:
            CalendarDay.objects.bulk_create([new])

    yield close
    calendar_days.clear_cache()
    registry.unregister("test office")


@pytest.mark.on_both
def test_a_day_that_staff_close_moves_the_jobs_two_seconds_later_without_apply(db_clock: Any, closed_on: Any) -> None:
    declare(after=minutes(20), calendar=office())
    command("apply")
    order = Order.objects.create(created_at=START)
    reconcile.step_all("default")  # the pass that apply has begun
    closed_on(1)
    assert command("plan") == [{"topic": CLOSE, "state": "applied", "make": 0, "move": 1, "cancel": 0, "overdue": 0}]
    db_clock.advance(seconds=1.9)
    reconcile.step_all("default")
    assert live() == {f"order:{order.pk}": at(20)}
    db_clock.advance(seconds=0.2)
    reconcile.step_all("default")
    assert live() == {f"order:{order.pk}": at(20, day=2)}
    CalendarDay.objects.all().delete()
    db_clock.advance(seconds=3)
    reconcile.step_all("default")
    assert live() == {f"order:{order.pk}": at(20)}


@pytest.mark.only_on("postgresql")
def test_a_day_that_staff_close_while_a_step_is_stored_begins_a_pass_under_repeatable_read(
    db_clock: Any, closed_on: Any
) -> None:
    declare(after=minutes(20), calendar=office())
    command("apply")
    order = Order.objects.create(created_at=START)
    reconcile.step_all("default")
    alter("SET default_transaction_isolation = 'repeatable read'")
    try:
        with committed_meanwhile(lambda: Applied.objects.update(position="")):
            closed_on(1)
    finally:
        alter("RESET default_transaction_isolation")
    db_clock.advance(seconds=2)
    reconcile.step_all("default")
    assert live() == {f"order:{order.pk}": at(20, day=2)}


@pytest.mark.only_on("postgresql")
def test_a_declaration_is_applied_under_repeatable_read_while_another_host_applies_it(db_clock: Any) -> None:
    declare()
    order = Order.objects.create(created_at=START)
    alter("SET default_transaction_isolation = 'repeatable read'")
    try:
        with committed_meanwhile(lambda: Applied.objects.create(topic=CLOSE, fingerprint="other", applied_at=START)):
            command("apply")
    finally:
        alter("RESET default_transaction_isolation")
    assert live() == {f"order:{order.pk}": at(30)}


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("action", ["apply", "reconcile"])
def test_a_pass_of_a_command_survives_a_change_of_a_job_under_repeatable_read(
    db_clock: Any, in_another_session: Any, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    declare()
    command("apply")
    order = Order.objects.create(created_at=START)
    changed: list[Callable[[], None]] = []

    def move(*args: Any, **options: Any) -> Any:
        if not changed:
            changed.append(in_another_session("UPDATE delaytasks_job SET ttr_ms = 7"))
            changed[0]()
        return statements_move(*args, **options)

    statements_move = statements.move
    monkeypatch.setattr(statements, "move", move)
    if action == "apply":
        declare(after=minutes(10))
    else:
        Order.objects.update(created_at=START - minutes(20))
    alter("SET default_transaction_isolation = 'repeatable read'")
    try:
        assert command(action) == [{"timeout": CLOSE, "made": 0, "moved": 1, "cancelled": 0, "locked": 0}]
    finally:
        alter("RESET default_transaction_isolation")
    assert (live(), Job.objects.get().ttr_ms) == ({f"order:{order.pk}": at(10)}, 7)


@pytest.mark.on_both
def test_an_exception_that_staff_give_to_another_calendar_moves_the_jobs_of_both(db_clock: Any, closed_on: Any) -> None:
    declare(after=minutes(20), calendar=office())
    command("apply")
    closed_on(1)
    order = Order.objects.create(created_at=START)
    for _ in range(2):
        db_clock.advance(seconds=3)
        reconcile.step_all("default")
    assert live() == {f"order:{order.pk}": at(20, day=2)}
    exception = CalendarDay.objects.get()
    exception.calendar = "another office"
    exception.save()
    db_clock.advance(seconds=3)
    reconcile.step_all("default")
    assert live() == {f"order:{order.pk}": at(20)}


def test_a_day_that_staff_have_just_closed_counts_at_the_due_time(
    stage: Any, db_clock: Any, closed_on: Any, monkeypatch: Any
) -> None:
    """Also if this process has read the calendar a moment ago."""
    monkeypatch.setattr(calendar_days, "CACHE_SECONDS", 3600.0)
    called = declare(after=minutes(20), calendar=office())
    command("apply")
    order = Order.objects.create(created_at=START)
    db_clock.set(to_ms(at(20)))
    closed_on(1, signal=False)
    stage.go()
    assert (called, live()) == ([], {f"order:{order.pk}": at(20, day=2)})


@pytest.fixture
def in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "is_test_run", lambda: False)


def test_a_removed_declaration_is_named_and_its_jobs_can_be_cancelled(db_clock: Any, in_production: None) -> None:
    from delaytasks import handlers
    from delaytasks.timeouts import checks

    declare()
    command("apply")
    Order.objects.create(created_at=START)
    with pytest.raises(CommandError, match="declared in the code"):
        command("forget", CLOSE)
    assert not AuditEntry.objects.filter(action="timeouts.forgotten").exists()
    declarations.unregister(CLOSE)
    handlers.unregister(CLOSE)
    [warning] = checks.check_applied(databases=["default"])
    assert (warning.id, "timeouts forget " in str(warning.hint)) == ("delaytasks.W041", True)
    assert "--database default`" in str(warning.hint)
    assert command("plan")[-1] == {
        "topic": CLOSE, "state": "no longer declared", "make": 0, "move": 0, "cancel": 1, "overdue": 0
    }  # fmt: skip
    assert command("forget", CLOSE)["cancelled"] == 1
    assert (live(), checks.check_applied(databases=["default"])) == ({}, [])
    with pytest.raises(CommandError, match="never applied"):
        command("forget", CLOSE)


@pytest.mark.on_both
def test_rows_of_a_forgotten_timeout_that_is_declared_again_get_new_jobs(db_clock: Any) -> None:
    from delaytasks import cancel, handlers

    declare()
    command("apply")
    order, other = [Order.objects.create(created_at=START) for _ in range(2)]
    cancel(CLOSE, f"order:{other.pk}", by="anna")
    declarations.unregister(CLOSE)
    handlers.unregister(CLOSE)
    command("forget", CLOSE)
    declare()
    assert command("apply")[0]["made"] == 1
    assert live() == {f"order:{order.pk}": START + HALF_HOUR}


def test_no_check_asks_to_apply_declarations_in_a_test_run(db_clock: Any) -> None:
    from delaytasks.timeouts import checks

    declare()
    assert checks.check_applied(databases=["default"]) == []


def test_a_check_names_declarations_that_are_not_applied(db_clock: Any, in_production: None) -> None:
    from delaytasks.timeouts import checks

    declare()
    (warning,) = checks.check_applied(databases=["default"])
    assert (warning.id, "timeouts apply --database default`" in str(warning.hint)) == ("delaytasks.W040", True)
    command("apply")
    assert checks.check_applied(databases=["default"]) == []


def same(**options: Any) -> str:
    return Declaration(CLOSE, Order, **({"on": "created_at", "after": HALF_HOUR} | options)).fingerprint


@pytest.mark.parametrize(
    "changed",
    [{"on": "id"}, {"after": 2 * HALF_HOUR}, {"after": None, "before": HALF_HOUR}, {"while_": Q(state="open")},
     {"while_": ~Q(state="open")}, {"if_past": "skip"}, {"after": "window"}],
)  # fmt: skip
def test_the_fingerprint_changes_with_what_decides_about_jobs(changed: dict[str, Any]) -> None:
    assert same(**changed) != same()


@pytest.mark.parametrize(
    "changed",
    [{"opens": "00:00-08:01"}, {"tz": "Europe/Berlin"}, {"holidays": [date(2030, 1, 1)]}, {"holidays": ("DE",)},
     {"exceptions": {date(2030, 1, 2): ""}}, {"editable": False}, {"hours": {"mon-sat": "00:00-08:00"}}],
)  # fmt: skip
def test_the_fingerprint_changes_with_the_hours_of_the_calendar(changed: dict[str, Any]) -> None:
    assert same(calendar=office(**changed)) != same(calendar=office())
    equal = office(hours=dict.fromkeys(("fri", "mon-thu"), "00:00-08:00"), exceptions={})
    assert same(calendar=equal) == same(calendar=office())


def test_the_fingerprint_changes_with_the_holidays_that_the_library_knows(monkeypatch: Any) -> None:
    before = same(calendar=office(holidays=("DE", "BW")))
    of_year = public_holidays.of_year
    with_one_more = {date(2030, 1, 2): "New"}
    monkeypatch.setattr(public_holidays, "of_year", lambda *place: {**of_year(*place)} | with_one_more)
    assert same(calendar=office(holidays=("DE", "BW"))) != before


def test_the_fingerprint_is_the_same_in_each_process(tmp_path: Any) -> None:
    import subprocess
    import sys

    program = (
        "import django; django.setup()\n"
        "from django.db.models import Q\nfrom tests.timeouts.app.models import Order\n"
        "from delaytasks.timeouts.declarations import Declaration\n"
        "print(Declaration('t', Order, 'created_at', while_=Q(state__in={'a', 'b', 'c', 'd'})).fingerprint)"
    )
    prints: set[str] = set()
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "DJANGO_SETTINGS_MODULE": "tests.settings", "PATH": "/usr/bin"}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        prints.add(done.stdout)
    assert len(prints) == 1
