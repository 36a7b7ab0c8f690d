"""Right and wrong uses of the public API for type checkers, which must report the lines that end in `# error`.

Never run. tests/packaging/test_types.py compares the checkers' output with the comments.
"""

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import delaytasks
from delaytasks import (
    CancelResult,
    Retry,
    RunningJob,
    Snooze,
    acancel,
    acancel_many,
    areschedule,
    aretry_dead,
    arun_now,
    aschedule,
    aschedule_many,
    cancel,
    cancel_many,
    forward,
    handler,
    jobs_of,
    levels,
    poll,
    reschedule,
    retry_dead,
    run_now,
    schedule,
    schedule_many,
    timeout,
)
from delaytasks.backoff import Backoff
from delaytasks.exceptions import BadInput, DelaytasksError, KeyIsLive, LeaseLost, UnknownTopic
from delaytasks.forwarding import Amqp, CeleryTask, Kafka, Webhook
from delaytasks.jobs.cancellation import CancelCounts
from delaytasks.jobs.schedule import Scheduled, schedule_unique
from delaytasks.models import Job
from delaytasks.signals import job_dead
from delaytasks.testing import Runs, Timeouts, minutes, running_job

HOUR = timedelta(hours=1)
TOMORROW = datetime(2030, 1, 1, tzinfo=UTC)


class Order:
    """In place of a model: without django-stubs a strict checker does not let a class derive from Model."""

    state = "open"

    def get_deferred_fields(self) -> set[str]:
        return set()


ORDER = Order()


# Scheduling

assert_type(schedule("order.close", "order:1", delay=HOUR), Job)
job = schedule("order.close", key="order:1", delay=30)
assert_type(job.is_new, bool)
assert_type(job.due_at, datetime)
assert_type(job.ended_at, datetime | None)
assert_type(job.attempt, int)
schedule(topic="order.close", key="order:1", due_at=TOMORROW, body={"order": 1}, ttr=2.5)
schedule("order.close", "order:1", delay=1, on_conflict="keep", using="default", by="ann")
assert_type(schedule_unique("order.close", "order:1", among=["a", "b"], delay=1), Job)
assert_type(schedule_many([{"topic": "order.close", "key": "order:1", "delay": 1}], by="ann"), Scheduled)
schedule_many({"topic": "order.close", "key": f"order:{n}", "due_at": TOMORROW} for n in range(3))
assert_type(schedule_many([]).created, int)

assert_type(schedule("order.close", subject=ORDER, delay=HOUR), Job)
schedule("order.close", "order:1", subject=ORDER, delay=HOUR)
schedule_many([{"topic": "order.close", "subject": ORDER, "delay": 1}])
assert_type(next(iter(jobs_of(ORDER, using="default"))).key, str)

jobs_of("order:1")  # error
jobs_of()  # error
assert_type(schedule("order.remind", "order:1", delay=HOUR, period=HOUR, repeat=3), Job)
schedule("order.remind", subject=ORDER, cron="0 9 * * 1-5", tz="Europe/Berlin", repeat=0)
schedule("order.remind", "order:1", rrule="FREQ=DAILY", due_at=TOMORROW, repeat=0)
schedule("order.remind", "order:1", period="1h", repeat=3)  # error
schedule("order.remind", "order:1", period=60, repeat="3")  # error
schedule("order.remind", "order:1", cron=5)  # error
schedule("order.close", subject="order:1", delay=HOUR)  # error
schedule("order.close", subject=None, delay=HOUR)  # error
schedule(1, nope=3)  # error
schedule("order.close", delay=1)  # error
schedule("order.close", 1042, delay=1)  # error
schedule("order.close", "order:1", HOUR)  # error
schedule("order.close", "order:1", delay="1h")  # error
schedule("order.close", "order:1", due_at="2030-01-01")  # error
schedule("order.close", "order:1", delay=1, on_conflict="ignore")  # error
schedule("order.close", "order:1", delay=1, reason="why")  # error
schedule_unique("order.close", "order:1", delay=1)  # error
schedule_unique("order.close", "order:1", among=["a"], nope=1)  # error
schedule_many("order.close")  # error
schedule_many([], on_conflict="ignore")  # error


# Changing

assert_type(cancel("order.close", "order:1"), CancelResult)
answer: str = cancel("order.close", key="order:1", using="default", by="ann", reason="paid")
if cancel(topic="order.close", key="order:1") is CancelResult.RUNNING:
    pass
assert_type(reschedule("order.close", "order:1", due_at=TOMORROW), Job)
reschedule("order.close", key="order:1", delay=HOUR, using="default", by="ann", reason="asked")
assert_type(run_now("order.close", "order:1"), Job)
run_now("order.close", key="order:1", using="default", by="ann", reason="asked")
assert_type(retry_dead("order.close", "order:1"), Job)
retry_dead("order.close", key="order:1", using="default", by="ann", reason="fixed")
retry_dead(job_id=1042, by="ann")

assert_type(cancel_many(topic="order.close", key_prefix="order:", by="ann", reason="asked"), CancelCounts)
assert_type(cancel_many(subject=ORDER).cancelled, int)

cancel_many("order.close")  # error
cancel_many(subject="order:1")  # error
cancel_many(topic="order.close", subject=None)  # error
cancel("x", key=3, foo=4)  # error
cancel("x", key=3)  # error
cancel("order.close")  # error
cancel("order.close", "order:1", "default")  # error
cancel("order.close", "order:1").word()  # error
reschedule("order.close", "order:1", TOMORROW)  # error
reschedule("order.close", "order:1", due_at=3)  # error
run_now("order.close", "order:1", delay=3)  # error
run_now("order.close", "order:1", by=None)  # error
retry_dead("order.close")  # error
retry_dead("order.close", "order:1", job_id=3)  # error
retry_dead(job_id="3")  # error


# Handlers keep their own type


@handler("order.close", ttr=60, max_attempts=5, backoff=Backoff(base_seconds=2))
def close_unpaid_order(job: RunningJob) -> None:
    assert_type(job.topic, str)
    assert_type(job.key, str)
    assert_type(job.attempt, int)
    assert_type(job.body, Any)
    assert_type(job.due_at, datetime)
    assert_type(job.deadline - job.created_at, timedelta)
    job.touch()
    print(job.atempt)  # error
    job.touch(30)  # error


@handler("refund.check", ttr=timedelta(seconds=30), atomic=False, queue="slow", concurrency=2)
def check_refund(job: RunningJob, dry_run: bool = False) -> Snooze | None:
    if job.failures > 3:
        raise Retry("the bank is closed", delay=3600)
    if dry_run:
        return Snooze(timedelta(minutes=10))
    with job.finishing():
        pass
    return None


@handler("points.expire", batch=100)
def expire_points(jobs: list[RunningJob]) -> None:
    assert_type(jobs[0], RunningJob)


@handler("points.remind", batch=100)
def remind_of_points(jobs: list[RunningJob]) -> dict[int, Snooze]:
    return {job.id: Snooze(60) for job in jobs if job.attempt == 1}


def tell_staff(job: RunningJob | Job) -> None: ...


handler("mail.send", on_dead=tell_staff)(close_unpaid_order)
of_one: Callable[[RunningJob], None] = close_unpaid_order
of_many: Callable[[list[RunningJob]], None] = expire_points


# ... and gain the verbs of their topic

assert_type(close_unpaid_order.topic, str)
assert_type(close_unpaid_order.schedule(ORDER, delay=HOUR), Job)
close_unpaid_order.schedule("order:1", due_at=TOMORROW, body={"order": 1}, ttr=2.5, on_conflict="keep", by="ann")
close_unpaid_order.schedule(ORDER, key="order:1:again", delay=30, using="default")
assert_type(close_unpaid_order.cancel(ORDER), CancelResult)
close_unpaid_order.cancel("order:1", running="fence", by="ann", reason="paid")
assert_type(close_unpaid_order.reschedule(ORDER, due_at=TOMORROW), Job)
assert_type(close_unpaid_order.run_now(ORDER), Job)
expire_points.schedule("points:1", delay=HOUR)

close_unpaid_order.schedule(1042, delay=HOUR)  # error
close_unpaid_order.schedule(ORDER, HOUR)  # error
close_unpaid_order.schedule(delay=HOUR)  # error
close_unpaid_order.schedule(ORDER, delay="1h")  # error
close_unpaid_order.schedule(ORDER, delay=HOUR, on_conflict="ignore")  # error
close_unpaid_order.cancel()  # error
close_unpaid_order.cancel(1042)  # error
close_unpaid_order.cancel(ORDER, running="wait")  # error
close_unpaid_order.shedule(ORDER, delay=HOUR)  # error


@handler("order.remind", subject=Order, on_subject_delete="cancel")
def remind_of_order(job: RunningJob) -> None:
    assert_type(job.subject_label, str | None)
    assert_type(job.subject_pk, str | None)
    print(job.subject.state)


handler("order.remind", subject="shop.Order", on_subject_delete="ignore")  # error
handler("order.remind", subject=3)  # error


# Polling ladders and delay levels


def to_a_person(job: RunningJob) -> None: ...


@poll("refund.ask", every=["2m", HOUR, 600], until=timedelta(days=3), on_give_up=to_a_person, ttr=30, atomic=False)
def ask_bank(job: RunningJob) -> bool:
    assert_type(job.polls, int)
    return job.polls > 3


@poll("refund.aask", every=["2m"], until="3d")
async def ask_bank_later(job: RunningJob) -> str | None: ...


ask_bank.schedule(ORDER, delay=HOUR, expires=HOUR)
ask_bank.schedule(ORDER, delay=HOUR, expires="1h")  # error
poll("refund.ask", until=HOUR)(ask_bank)  # error
poll("refund.ask", every=["2m"], until=HOUR, batch=5)(ask_bank)  # error
poll("refund.ask", every=["2m"], until=HOUR, ttr="1m")(ask_bank)  # error
poll("refund.ask", every=["2m"], until=HOUR)(expire_points)  # error
assert_type(levels("rocketmq")[3], timedelta)
schedule("order.close", "order:1", delay=levels("1s 5s").round_up(3))
levels(3)  # error


def calls(job: RunningJob) -> None:
    assert_type(ask_bank(job), bool)
    ask_bank("refund:1")  # error
    assert_type(check_refund(job, dry_run=True), Snooze | None)
    assert_type(remind_of_points([job]), dict[int, Snooze])
    close_unpaid_order(job)
    close_unpaid_order(1)  # error
    check_refund(job, dry=True)  # error
    expire_points(job)  # error


@handler("of.many", batch=10)  # error
def takes_one(job: RunningJob) -> None: ...


@handler("of.one")  # error
def takes_many(jobs: list[RunningJob]) -> None: ...


@handler("answers")  # error
def answers_something(job: RunningJob) -> str:
    return job.key


# Coroutine functions


@handler("coroutine")
async def handle(job: RunningJob) -> Snooze | None:
    await job.atouch()
    async with job.afinishing():
        pass
    await job.touch()  # error
    return None


@handler("coroutines", batch=10)
async def handle_many(jobs: list[RunningJob]) -> dict[int, Snooze]:
    return {job.id: Snooze(60) for job in jobs}


@handler("answers")  # error
async def answers_later(job: RunningJob) -> str:
    return job.key


@handler("of.many", batch=10)  # error
async def takes_one_later(job: RunningJob) -> None: ...


async def view(later: Callable[[RunningJob], Coroutine[Any, Any, Snooze | None]] = handle) -> None:
    assert_type(await aschedule("order.close", "order:1", delay=HOUR), Job)
    assert_type(await aschedule_many([{"topic": "order.close"}], by="ann"), Scheduled)
    assert_type(await acancel("order.close", key="order:1"), CancelResult)
    assert_type(await acancel_many(topic="order.close", key_prefix="order:"), CancelCounts)
    assert_type(await acancel_many(subject=ORDER, by="ann", reason="asked"), CancelCounts)
    assert_type(await areschedule("order.close", "order:1", due_at=TOMORROW), Job)
    assert_type(await arun_now("order.close", "order:1", by="ann"), Job)
    assert_type(await aretry_dead("order.close", "order:1"), Job)
    assert_type(await aretry_dead(job_id=3), Job)
    await aschedule("order.close", "order:1", delay="1h")  # error
    await aschedule("order.close", delay=1)  # error
    await aschedule("order.close", "order:1", delay=1, on_conflict="ignore")  # error
    await acancel("order.close")  # error
    await acancel_many("order.close")  # error
    await acancel_many(key="order:1")  # error
    await areschedule("order.close", "order:1", TOMORROW)  # error
    await arun_now("order.close", "order:1", delay=3)  # error
    await aretry_dead("order.close", "order:1", job_id=3)  # error
    print((await acancel("order.close", "order:1")).word)  # error


async def view_with_handles() -> None:
    assert_type(await close_unpaid_order.aschedule(ORDER, delay=HOUR), Job)
    assert_type(await close_unpaid_order.aschedule("order:1", due_at=TOMORROW, body={"order": 1}, ttr=2.5), Job)
    assert_type(await close_unpaid_order.acancel(ORDER), CancelResult)
    assert_type(await close_unpaid_order.acancel("order:1", running="fence", reason="paid"), CancelResult)
    assert_type(await close_unpaid_order.areschedule(ORDER, due_at=TOMORROW), Job)
    assert_type(await close_unpaid_order.arun_now("order:1", by="ann"), Job)
    await close_unpaid_order.aschedule(1042, delay=HOUR)  # error
    await close_unpaid_order.aschedule(delay=HOUR)  # error
    await close_unpaid_order.aschedule(ORDER, delay="1h")  # error
    await close_unpaid_order.aschedule(ORDER, delay=HOUR, on_conflict="ignore")  # error
    await close_unpaid_order.acancel()  # error
    await close_unpaid_order.acancel(1042)  # error
    await close_unpaid_order.areschedule(ORDER, TOMORROW)  # error
    await close_unpaid_order.arun_now(ORDER, delay=3)  # error
    await close_unpaid_order.cancel(ORDER)  # error
    print((await close_unpaid_order.acancel(ORDER)).word)  # error


handler("order.close", ttl=60)  # error
handler("order.close", max_attempts="5")  # error
handler(close_unpaid_order)  # error
Snooze("1h")  # error
Snooze()  # error
Retry("closed", delay="1h")  # error
Retry("closed", 60)  # error


# The test kit


def uses_the_kit(timeouts: Timeouts) -> None:
    assert_type(timeouts.advance(minutes=29, seconds=59), Runs)
    assert_type(timeouts.advance(HOUR).outcomes, dict[str, int])
    assert_type(timeouts.advance_to(TOMORROW)[0].at, datetime)
    assert_type(timeouts.now, datetime)
    assert_type(timeouts.assert_scheduled("order.close", subject=ORDER, within=minutes(30)), Job)
    timeouts.assert_not_scheduled(close_unpaid_order, "order:1")
    timeouts.die_in(close_unpaid_order, before="commit")
    job = running_job(close_unpaid_order, subject=ORDER, body={"order": 1})
    close_unpaid_order(job)
    assert_type(job.ended, bool)
    timeouts.advance(30)  # error
    timeouts.advance(minute=30)  # error
    timeouts.die_in(close_unpaid_order, before="lunch")  # error
    timeouts.assert_scheduled("order.close", within=30)  # error
    running_job(3)  # error


# Timeouts declared on models


class Invoice:
    def __init__(self, number: int) -> None:
        self.number = number


@timeout(Invoice, on="sent_at", after=timedelta(days=14), if_past="skip", ttr=30)
def dun(invoice: Invoice, job: RunningJob) -> Snooze | None:
    return Snooze(job.attempt + invoice.number)


@timeout(Invoice, on="sent_at", before="notice")
async def announce(invoice: Invoice, job: RunningJob) -> None: ...


@timeout(Invoice, on="sent_at")  # error
def wrong_row(invoice: str, job: RunningJob) -> None: ...


def use_timeouts(job: RunningJob) -> None:
    assert_type(dun.topic, str)
    dun(Invoice(1), job)
    dun("1", job)  # error
    dun.cancel("invoice:1")
    timeout(Invoice, on=3)  # error
    timeout(Invoice, on="sent_at", if_past="never")  # error


# Exceptions, signals, names


def refused(error: DelaytasksError, late: LeaseLost, unknown: UnknownTopic) -> ValueError:
    assert_type(str(error), str)
    bad: BadInput = unknown
    not_bad: BadInput = late  # error
    return bad or not_bad


assert job_dead is not None
DELAYTASKS_VERSION: str = delaytasks.__version__
try:
    delaytasks.schedule("order.close", "order:1", delay=1)
except KeyIsLive:
    pass
delaytasks.shedule("order.close", "order:1", delay=1)  # error
from delaytasks import cancel_all  # noqa: E402, F401  # error

# Forwarding

forward("order.timeout", Kafka("orders", key="key"), format="cloudevents-binary", ttr=HOUR)
forward("order.remind", Amqp("shop", "remind.{key}"), max_attempts=3)
forward("order.close", CeleryTask("shop.tasks.close", queue="slow"))
delaytasks.forward("order.hook", Webhook("https://shop.example/"))
forward("order.timeout", Kafka("orders", key="body"))  # error
forward("order.timeout", object())  # error
forward("order.timeout", Kafka("orders"), format="xml")  # error
