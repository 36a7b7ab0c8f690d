"""Due jobs of a topic are sent together: each is finished, dead or sent again by the answer to its own message."""

import pytest

from delaytasks import clock, schedule, schedule_many
from delaytasks.exceptions import TTRExceeded
from delaytasks.forwarding import BatchRefused, Rejected, TargetDown, delivery, forward
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.states import State
from delaytasks.worker import runner

from ..support.stage import outcomes, state_of


class Target:
    """Answers calls with the functions of `steps`, one each: they get the messages and report(). Then confirms all.

    calls   the keys of the messages of each call
    """

    max_batch = 10

    def __init__(self):
        self.steps, self.calls, self.ids = [], [], []

    def deliver(self, message, timeout_seconds):
        raise AssertionError("never called, because the target takes batches")

    def deliver_many(self, messages, timeout_seconds, report):
        self.calls.append([message.key for message in messages])
        self.ids += [message.id for message in messages]
        step = self.steps.pop(0) if self.steps else answer()
        step(messages, report)


def answer(error_of=None, *, then=None):
    """Return a step: report the errors of these keys, None for the others, `...` not at all. Then raise an error."""

    def step(messages, report):
        for message in messages:
            error = (error_of or {}).get(message.key)
            if error is not ...:
                report(message, error)
        if then is not None:
            raise then

    return step


@pytest.fixture
def target(stage):
    target = Target()
    stage.registered.append("t")
    forward("t", target)
    return target


def fill(count):
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(count))
    runner._paces["t"] = runner.Pace(size=count)


def all_outcomes(count):
    return [outcomes(f"k{n}") for n in range(count)]


def held_why():
    return Topic.objects.filter(name="t").values_list("held_why", flat=True).first() or ""


def failures():
    return set(Job.objects.values_list("failures", flat=True))


def test_due_jobs_are_sent_together_and_a_call_has_at_most_max_batch(stage, target):
    fill(25)
    stage.go()
    assert sorted(map(len, target.calls)) == [5, 10, 10]
    assert all_outcomes(25) == [["finished"]] * 25


def test_a_lone_job_is_sent_at_once(stage, target, db_clock):
    runner._paces["t"] = runner.Pace(size=200)
    schedule("t", "a", delay=0)
    due_ms = db_clock.now_ms
    stage.go()
    assert (target.calls, state_of("a")) == ([["a"]], "finished")
    assert JobEvent.objects.get().reserved_ms <= due_ms + 1


def test_a_message_that_is_not_taken_goes_back_uncharged_and_the_confirmed_ones_are_finished(stage, target, db_clock):
    target.steps = [answer({"k1": TargetDown("nack: the queue is full")})]
    fill(3)
    stage.go()
    assert all_outcomes(3) == [["finished"], ["snoozed"], ["finished"]]
    assert (held_why(), failures()) == ("nack: the queue is full", {0})
    db_clock.advance(seconds=5)
    stage.go()
    assert (target.calls[1:], state_of("k1"), held_why()) == ([["k1"]], "finished", "")


def test_a_target_that_takes_some_of_each_batch_is_held_for_a_short_time_only(stage, target, db_clock):
    """As a full queue that its consumer empties: the wait grows only while the target takes nothing."""

    def takes_one(messages, report):
        for number, message in enumerate(messages):
            report(message, TargetDown("the queue is full") if number else None)

    fill(12)
    waits = []
    for _ in range(5):
        target.steps = [takes_one, takes_one]
        stage.go()
        waits.append(clock.to_ms(Topic.objects.get(name="t").held_until) - db_clock.now_ms)
        db_clock.advance(seconds=5)
    assert waits == [5_000] * 5
    assert Job.objects.filter(state=State.FINISHED).count() == 1 + 4 * 2


def test_a_refused_message_is_dead_alone_with_its_reason(stage, target):
    target.steps = [answer({"k1": Rejected("too large")})]
    fill(3)
    stage.go()
    assert all_outcomes(3) == [["finished"], ["dead"], ["finished"]]
    assert "too large" in Job.objects.get(key="k1").error
    assert (held_why(), len(target.calls)) == ("", 1)


def test_a_target_that_goes_away_sends_back_what_it_has_not_confirmed(stage, target, db_clock):
    target.steps = [answer({"k1": ..., "k2": ...}, then=TargetDown("No connection"))]
    fill(4)
    stage.go()
    assert all_outcomes(4) == [["finished"], ["snoozed"], ["snoozed"], ["finished"]]
    assert (held_why(), failures()) == ("No connection", {0})
    first = target.ids[1:3]
    db_clock.advance(seconds=5)
    stage.go()
    db_clock.advance(seconds=5)
    stage.go()
    assert target.ids[4:] == first, "they are sent again with the same ids"
    assert [state_of("k1"), state_of("k2"), held_why()] == ["finished", "finished", ""]


def test_only_the_probe_of_a_batch_is_sent_and_recorded_while_the_target_is_away(stage, target, db_clock):
    target.steps = [answer({"k0": TargetDown("away")}), answer({"k1": TargetDown("away")})]
    fill(1)
    stage.go()
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(1, 4))
    runner._paces["t"] = runner.Pace(size=4)
    db_clock.advance(seconds=5)
    stage.go()
    assert target.calls == [["k0"], ["k1"]]
    assert all_outcomes(4) == [["snoozed"], ["snoozed"], [], []]
    db_clock.advance(seconds=5)
    stage.go()
    assert [state_of(f"k{n}") for n in range(4)] == ["finished"] * 4


def test_messages_that_are_refused_together_are_sent_alone_to_find_the_cause(stage, target):
    target.steps = [
        answer({"k1": ..., "k2": ..., "k3": ...}, then=BatchRefused("one of them")),
        answer(), answer({"k2": ...}, then=Rejected("bad")), answer(),
    ]  # fmt: skip
    fill(4)
    stage.go()
    assert target.calls == [["k0", "k1", "k2", "k3"], ["k1"], ["k2"], ["k3"]]
    assert all_outcomes(4) == [["finished"], ["finished"], ["dead"], ["finished"]]
    assert held_why() == ""


def test_the_only_message_without_a_report_is_sent_alone_before_it_is_charged(stage, target):
    target.steps = [answer({"k1": ...}, then=BatchRefused("one of them"))]
    fill(3)
    stage.go()
    assert target.calls == [["k0", "k1", "k2"], ["k1"]]
    assert all_outcomes(3) == [["finished"]] * 3


def test_an_error_that_may_pass_is_charged_to_the_message_that_has_it_alone(stage, target):
    target.steps = [
        answer({"k0": ..., "k1": ...}, then=ValueError("one")), answer(), answer({"k1": ...}, then=ValueError("k1")),
    ]  # fmt: skip
    fill(2)
    stage.go()
    assert all_outcomes(2) == [["finished"], ["failed"]]
    assert list(Job.objects.order_by("id").values_list("failures", flat=True)) == [0, 1]


def test_what_there_is_no_time_to_send_alone_goes_back_uncharged(stage, target, monkeypatch):
    monkeypatch.setattr(delivery, "ALONE_SECONDS", 0)
    target.steps = [answer({"k0": ..., "k1": ..., "k2": ...}, then=BatchRefused("one of them"))]
    fill(3)
    stage.go()
    assert target.calls[:2] == [["k0", "k1", "k2"], ["k0"]]
    assert [outcomes("k0"), outcomes("k1")[0], outcomes("k2")[0]] == [["finished"], "snoozed", "snoozed"]
    assert [state_of(f"k{n}") for n in range(3)] == ["finished"] * 3
    assert failures() == {0}


def test_a_target_that_goes_away_while_messages_are_sent_alone_holds_the_topic(stage, target):
    none = {"k0": ..., "k1": ..., "k2": ...}
    target.steps = [answer(none, then=BatchRefused("one of them")), answer(), answer(none, then=TargetDown("away"))]
    fill(3)
    stage.go()
    assert target.calls == [["k0", "k1", "k2"], ["k0"], ["k1"]]
    assert (all_outcomes(3), held_why()) == ([["finished"], ["snoozed"], ["snoozed"]], "away")


def test_an_interrupt_finishes_what_is_confirmed_and_charges_nobody_for_the_rest(stage, target, db_clock):
    def interrupted(messages, report):
        report(messages[0], None)
        db_clock.advance(seconds=60)
        raise TTRExceeded

    target.steps = [interrupted]
    fill(3)
    stage.mover.move_due()
    stage.run("t", stopping=lambda: bool(target.calls))
    assert all_outcomes(3) == [["finished"], ["expired"], ["expired"]]
    assert (failures(), held_why()) == ({0}, "")
    stage.dispatched.append("t")
    stage.go()
    assert sorted(target.calls[1:]) == [["k1"], ["k2"]], "each alone: one of them may be the cause"
    assert sorted(target.ids[3:]) == sorted(target.ids[1:3])
    assert [state_of("k1"), state_of("k2")] == ["finished", "finished"]


def test_the_first_job_of_a_batch_is_the_probe_and_the_others_follow_it(stage, target, db_clock):
    target.steps = [answer(dict.fromkeys(["k0", "k1", "k2"], ...), then=TargetDown("away"))]
    fill(3)
    stage.go()
    for then, calls, states in (
        (TargetDown("still away"), [1], ["delayed"] * 3),
        (None, [1, 2], ["finished"] * 3),
    ):
        target.calls.clear()
        target.steps = [answer(dict.fromkeys(["k0", "k1", "k2"], ...), then=then)] if then else []
        db_clock.advance(seconds=5)
        runner._paces["t"] = runner.Pace(size=3)
        stage.go()
        assert [len(call) for call in target.calls] == calls
        assert [state_of(f"k{n}") for n in range(3)] == states
    assert held_why() == ""


def test_a_target_that_reports_nothing_fails_the_attempts(stage, target):
    target.steps = [lambda messages, report: None] * 3
    fill(2)
    stage.go()
    assert target.calls == [["k0", "k1"], ["k0"], ["k1"]]
    assert all_outcomes(2) == [["failed"], ["failed"]]
    assert "has not reported" in JobEvent.objects.get(job__key="k0").error
