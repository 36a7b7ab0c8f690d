"""Random histories against an oracle that scans the table: jobs are what it says, and what ran was allowed to run.

DELAYTASKS_TIMEOUT_EXAMPLES sets the number of histories.
"""

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F, Q
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from delaytasks import cancel, clock, databases, handlers, timeout
from delaytasks.db import dialects
from delaytasks.models import Declaration as Applied
from delaytasks.models import Job
from delaytasks.timeouts import declarations, reconcile
from delaytasks.timeouts.triggers import installation, marks

from .app.models import Customer, Order
from .conftest import START

EXAMPLES = int(os.environ.get("DELAYTASKS_TIMEOUT_EXAMPLES", "12"))
TOPIC = "declared.close"
MINUTE = timedelta(minutes=1)
RECONCILE = timedelta(seconds=300)  # RECONCILE_SECONDS
minutes = st.integers(-5, 60).map(lambda n: START + n * MINUTE)
states = st.sampled_from(["open", "paid"])
spans = st.integers(0, 20).map(lambda n: n * MINUTE)
VERSIONS: list[dict[str, Any]] = [
    {"after": timedelta(minutes=10), "while_": Q(state="open")},
    {"after": "window", "while_": ~Q(state="paid") & (Q(customer=None) | Q(customer__active=True))},
    {"before": timedelta(minutes=3), "while_": Q(), "if_past": "skip"},
]
TRUE: list[Any] = [  # the conditions, written again in Python
    lambda order: order.state == "open",
    lambda order: order.state != "paid" and (order.customer is None or order.customer.active),
    lambda order: True,
]
DUE: list[Any] = [
    lambda order: order.created_at + timedelta(minutes=10),
    lambda order: None if order.window is None else order.created_at + order.window,
    lambda order: order.created_at - timedelta(minutes=3),
]


class Histories(RuleBasedStateMachine):
    """Rows are written in each way that there is. After a reconciliation, live jobs equal a scan."""

    @initialize()
    def begin(self) -> None:
        clean()
        self.now = START
        self.tick(timedelta(0))
        self.leaves_open = False
        Order.objects.bulk_create([Order(created_at=START + n * 7 * MINUTE) for n in range(4)])
        self.deploy(0)

    def bring_up_to_date(self) -> None:
        """Let a layer that no signal has to tell find what has changed."""
        reconcile.reconcile("default")

    def tick(self, delta: timedelta) -> None:
        self.now += delta
        dialects.set_clock(clock.to_ms(self.now))
        databases.clock.cache_clear()

    @rule(version=st.sampled_from(range(len(VERSIONS))))
    def deploy(self, version: int) -> None:
        """Deploy a changed declaration, and apply it."""
        self.version = version
        declarations.unregister(TOPIC)
        handlers.unregister(TOPIC)
        timeout(Order, on="created_at", topic=TOPIC, max_attempts=1, **VERSIONS[version])(self.run)
        reconcile.apply("default", "run")
        self.deployed()

    def deployed(self) -> None:
        """Do what `migrate` does after a deployment."""

    def run(self, order: Order, job: Any) -> None:
        row = Order.objects.select_related("customer").get(pk=order.pk)
        assert self.wanted(row) == Job.objects.get(pk=job.id).declared_due <= self.now, "early, or with another time"
        if not self.leaves_open:
            Order.objects.filter(pk=order.pk).update(state="paid")

    def wanted(self, order: Order) -> datetime | None:
        if order.created_at is None or not TRUE[self.version](order):
            return None
        due: datetime | None = DUE[self.version](order)
        return due

    # -- writes ---------------------------------------------------------------------------------

    @rule(at=minutes | st.none(), state=states, window=spans | st.none(), active=st.booleans() | st.none())
    def create(self, at: Any, state: str, window: Any, active: bool | None) -> None:
        customer = None if active is None else Customer.objects.create(active=active)
        Order.objects.create(created_at=at, state=state, window=window, customer=customer)

    @rule(data=st.data(), at=minutes, state=states, rolls_back=st.booleans())
    def save(self, data: Any, at: Any, state: str, rolls_back: bool) -> None:
        order = self.one(data)
        if order is None:
            return
        with transaction.atomic():
            order.created_at, order.state = at, state
            order.save(update_fields=["created_at", "state"] if order.pk % 2 else None)
            transaction.set_rollback(rolls_back)

    @rule(state=states, delta=spans)
    def update(self, state: str, delta: timedelta) -> None:
        Order.objects.filter(pk__gt=0).update(state=state, created_at=F("created_at") + delta)

    @rule(data=st.data(), window=spans)
    def bulk_update(self, data: Any, window: timedelta) -> None:
        order = self.one(data)
        if order is not None:
            order.window = window
            Order.objects.bulk_update([order], ["window"])

    @rule(state=states)
    def raw_sql(self, state: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE declared_order SET state = %s WHERE id %% 2 = 0", [state])

    @rule(active=st.booleans())
    def related_rows(self, active: bool) -> None:
        Customer.objects.update(active=active)

    @rule(data=st.data(), raw=st.booleans())
    def delete(self, data: Any, raw: bool) -> None:
        order = self.one(data)
        if order is not None and raw:
            Order.objects.filter(pk=order.pk)._raw_delete("default")
        elif order is not None:
            order.delete()

    @rule(data=st.data())
    def person_cancels(self, data: Any) -> None:
        order = self.one(data)
        if order is not None:
            cancel(TOPIC, f"order:{order.pk}")
            self.reconciled()  # which makes no new job for that due time

    @rule(leaves_open=st.booleans(), delta=spans)
    def time_passes(self, leaves_open: bool, delta: timedelta) -> None:
        from delaytasks.worker import runner

        self.leaves_open = leaves_open
        self.tick(delta)
        runner.run_topic(TOPIC, using="default", worker="w", dispatch_topic=lambda topic: None)
        assert not Job.objects.filter(topic=TOPIC, died_at__isnull=False).values_list("error", flat=True)
        self.reconciled()

    def one(self, data: Any) -> Order | None:
        pks = list(Order.objects.order_by("pk").values_list("pk", flat=True))
        return Order.objects.get(pk=data.draw(st.sampled_from(pks))) if pks else None

    # -- the oracle -----------------------------------------------------------------------------

    @rule()
    def reconciled(self) -> None:
        self.equal_a_scan_after(self.bring_up_to_date)

    @rule(pages=st.integers(0, 3))
    def the_guard_is_killed(self, pages: int) -> None:
        """The process that reconciles dies in a page. Others go on later, with the rows of that time."""
        self.tick(RECONCILE)
        for _ in range(pages):
            self.guard_makes_a_page()
        with transaction.atomic():
            self.guard_makes_a_page()
            transaction.set_rollback(True)

    @rule()
    def a_guard_goes_on(self) -> None:
        """It ends the pass that another one has begun, and makes a whole one of its own."""

        def two_passes() -> None:
            for _ in range(2):
                while self.guard_makes_a_page():
                    pass

        self.tick(RECONCILE)
        self.equal_a_scan_after(two_passes)

    def guard_makes_a_page(self) -> bool:
        declaration = declarations.find(TOPIC)
        assert declaration is not None
        return reconcile._stored_page(declaration, "default")

    @rule(data=st.data(), state=states, commits=st.booleans())
    def another_session_holds_a_row(self, data: Any, state: str, commits: bool) -> None:
        """Its job stays as it is meanwhile. On SQLite a session that writes holds the whole database."""
        order = self.one(data) if connection.vendor == "postgresql" else None
        if order is None:
            return
        other = connection.copy()
        other.set_autocommit(False)
        try:
            with other.cursor() as cursor:
                cursor.execute("UPDATE declared_order SET state = %s WHERE id = %s", [state, order.pk])
            self.equal_a_scan_after(self.bring_up_to_date, locked=f"order:{order.pk}")
            other.commit() if commits else other.rollback()
        finally:
            other.close()
        self.reconciled()

    def equal_a_scan_after(self, act: Callable[[], None], *, locked: str = "") -> None:
        before = {key: newest(key) for key in self.keys()}
        live = self.declared_due_of_live()
        act()
        wanted = self.scan(before, live) | {locked: live.get(locked)}
        assert self.declared_due_of_live() == {key: due for key, due in wanted.items() if due is not None}

    def keys(self) -> list[str]:
        return [f"order:{pk}" for pk in Order.objects.values_list("pk", flat=True)]

    def declared_due_of_live(self) -> dict[str, Any]:
        return dict(Job.objects.live().filter(topic=TOPIC).values_list("key", "declared_due"))

    def scan(self, before: dict[str, Any], live: dict[str, Any]) -> dict[str, datetime | None]:
        """Return the declared due time of the job that each row should have."""
        found = {}
        for order in Order.objects.select_related("customer"):
            key, due = f"order:{order.pk}", self.wanted(order)
            done = key not in live and due is not None and before[key] == due
            past = due is not None and due < self.now and VERSIONS[self.version].get("if_past") == "skip"
            stands = due is not None and live.get(key) == due
            found[key] = due if stands or not (done or past) else None
        return found

    @invariant()
    def at_most_one_live_job(self) -> None:
        keys = list(Job.objects.live().filter(topic=TOPIC).values_list("key", flat=True))
        assert len(keys) == len(set(keys))


def newest(key: str) -> datetime | None:
    jobs = Job.objects.filter(topic=TOPIC, key=key, declared_due__isnull=False).order_by("-id")
    found: datetime | None = jobs.values_list("declared_due", flat=True).first()
    return found


def clean() -> None:
    with connection.cursor() as cursor:
        for table in (
            "declared_order",
            "declared_customer",
            "delaytasks_jobevent",
            "delaytasks_job",
            "delaytasks_timeoutmark",
        ):
            cursor.execute(f"DELETE FROM {table}")
    Applied.objects.all().delete()


class HistoriesWithTriggers(Histories):
    """The triggers mark what was written, and no pass is made: draining the marks is enough."""

    def bring_up_to_date(self) -> None:
        marks.drain("default")

    def deployed(self) -> None:
        installation.install("default")  # it may watch other columns now, and marks all rows


@pytest.fixture
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass has several pages, so that it can be killed between two of them."""
    monkeypatch.setattr(reconcile, "PAGE", 3)
    monkeypatch.setattr(marks, "PAGE", 3)


@pytest.mark.on_both
@pytest.mark.parametrize("machine", [Histories, HistoriesWithTriggers])
@pytest.mark.usefixtures("_small_pages", "remove_triggers")
def test_live_jobs_equal_a_scan_after_each_reconciliation(db_clock: Any, machine: type[RuleBasedStateMachine]) -> None:
    options = settings(
        max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=options)
