"""run_topic: reserves a topic's ready jobs in small batches, claims them, runs their handler, ends them.

A bell brings us here (mover.py rang it); what is reserved in the mirror is claimed in the
database (claiming.py), and only the claim counts. The batch grows while the handler is quick and
shrinks when it is slow, so that nobody's TTR is spent waiting behind others.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError, connections

from . import bells, conf, engine, statements, topics, ttr
from .attempt import Attempt
from .claiming import take
from .endings import Verdict, conclude
from .exceptions import LeaseLost, MirrorDown
from .handling import Handling
from .places import Places
from .states import Outcome
from .topics import Handler

logger = logging.getLogger("delaytasks")
BATCH_TARGET_SECONDS = 0.4  # what a batch should take
SLOT_GRACE_MS = 2_000  # a slot outlives the TTR of what runs in it by this
RENEW_SLOT_MS = 1_000


@dataclass
class Pace:
    """How many jobs to reserve at once: more after a quick batch, cut to fit after a slow one."""

    size: int = 1

    def learn(self, ran: int, seconds: float, ttr_ms: int, most: int) -> None:
        target = min(BATCH_TARGET_SECONDS, ttr_ms / 4000)
        if ran and seconds > target:
            self.size = max(1, int(ran * target / seconds))
        elif ran >= self.size:  # not by what one job took: a batch handler may take as long for one as for fifty
            self.size = min(most, self.size * (8 if seconds * 8 < target else 2))


_paces: dict[str, Pace] = {}


def run_topic(
    topic: str,
    *,
    using: str,
    worker: str,
    ring: Callable[[str], None],
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Run ready jobs, of `topic` first, until none is left, the time is spent or the worker stops; how many were run.

    When the topic is empty, whatever else is ready of its crew (the topics that this worker runs
    from the same queue) is run, and then it lingers for a moment for the next.

    ring   rings for a topic in which something is left.
    """
    if topics.find(topic) is None:
        logger.warning("no handler for topic %s here; its jobs stay ready", topic)
        return 0
    over = time.monotonic() + conf.get().run_budget_seconds
    crew, ran = Crew(topic, using, stopping, over), 0
    found: str | None = topic
    while found is not None:
        ran += _run_once(found, using, worker, ring, stopping, over)
        found = crew.next_topic(after=found)
    return ran


def _run_once(
    topic: str, using: str, worker: str, ring: Callable[[str], None], stopping: Callable[[], bool], over: float
) -> int:
    handler = topics.find(topic)
    assert handler is not None
    run = Run(handler, engine.places(using), using, worker, stopping, over)
    try:
        run.go()
    except MirrorDown:  # it counts as down now: the database answers
        before, run = run.ran, Run(handler, engine.places(using), using, worker, stopping, over)
        run.ran = before
        run.go()
    if run.left_something:
        ring(topic)
    return run.ran


class Crew:
    """The topics that one runner serves: it turns to another instead of waiting for its bell."""

    def __init__(self, topic: str, using: str, stopping: Callable[[], bool], over: float) -> None:
        self.name, self.using, self.stopping, self.over = bells.crew(topic), using, stopping, over
        self.others = set(bells.crew_topics(topic))
        self.token = uuid.uuid4().hex

    def next_topic(self, after: str) -> str | None:
        """A topic of the crew with ready jobs, waiting for one for a moment if need be; None: leave."""
        self.others.discard(after)  # we have just been there: what is left needs a slot or a bell
        wait_ms = min(conf.get().linger_ms, int((self.over - time.monotonic()) * 1000))
        if wait_ms <= 0 or self.stopping():
            return None
        places = engine.places(self.using)
        try:
            return self._ready(places) or places.linger(self.name, self.token, engine.now_ms(self.using), wait_ms)
        except MirrorDown:
            return None

    def _ready(self, places: Places) -> str | None:
        ready = [topic for topic in sorted(self.others) if not bells.terms(self.using, topic).paused]
        found = list(places.ready_counts(ready)) if ready else []
        return random.choice(found) if found else None


class Run:
    """One run slot's worth of work on one topic."""

    def __init__(
        self, handler: Handler, places: Places, using: str, worker: str, stopping: Callable[[], bool], over: float
    ) -> None:
        self.handler, self.topic, self.places = handler, handler.topic, places
        self.using, self.worker, self.stopping, self.over = using, worker, stopping, over
        self.handling = Handling(handler, places, using, stopping)
        self.token = uuid.uuid4().hex
        self.slot_renewed_ms = 0
        self.longest_ttr_ms = handler.ttr_ms  # of what is in hand; a job may have its own
        self.pace = _paces.setdefault(self.topic, Pace())
        self.left_something = False
        self.ran = 0

    def go(self) -> None:
        if not self.has_slot():
            return
        try:
            while self.goes_on() and self.has_slot():
                quick = self.pace.size > 1
                held = take(self.places, self.topic, self.pace.size, using=self.using, worker=self.worker, quick=quick)
                if not held:
                    break
                self.work(held)
            self.left_something = not self.stopping() and bool(self.places.ready_counts([self.topic]))
        finally:
            self.places.free_slot(self.topic, self.token)

    def goes_on(self) -> bool:
        return not self.stopping() and time.monotonic() < self.over

    def has_slot(self) -> bool:
        """Take the run slot, or renew it when it is a second old; False if there is none, or the topic is paused."""
        now_ms = engine.now_ms(self.using)
        if now_ms - self.slot_renewed_ms < RENEW_SLOT_MS:
            return True
        paused, concurrency = bells.terms(self.using, self.topic)
        until_ms = now_ms + self.longest_ttr_ms + RENEW_SLOT_MS + SLOT_GRACE_MS
        if paused or not self.places.take_slot(self.topic, self.token, now_ms, until_ms, concurrency):
            return False
        self.slot_renewed_ms = now_ms
        return True

    def renew_slot(self) -> None:
        """A handler touched its job: the slot is to last as long."""
        self.slot_renewed_ms = 0
        try:
            self.has_slot()
        except MirrorDown as error:
            logger.warning("%s: the run slot was not renewed: %s", self.topic, error)

    def work(self, held: list[Attempt]) -> None:
        """Run what is held, as far as the time for a batch goes; the rest is given back."""
        began, left = time.monotonic(), list(held)
        until = min(self.over, began + 2 * BATCH_TARGET_SECONDS)
        longest_ttr_ms = max(self.handler.ttr_ms, *(attempt.ttr_ms for attempt in held))
        if longest_ttr_ms != self.longest_ttr_ms:
            self.longest_ttr_ms, self.slot_renewed_ms = longest_ttr_ms, 0
        try:
            with ttr.watching():
                self.run_in_turn(left, until)
        except (DatabaseError, InterfaceError):
            logger.exception("%s: the database failed; what is not given back comes when its lease ends", self.topic)
            connections[self.using].close()
            raise
        finally:
            self.handling.settle()
            self.give_back(left)
        self.pace.learn(len(held) - len(left), time.monotonic() - began, self.handler.ttr_ms, conf.get().batch_max)

    def run_in_turn(self, left: list[Attempt], until: float) -> None:
        """Run groups off the front of `left`: what shares a call or a commit, and if that fails, one by one.

        What is taken off has ended; what is left there at the end, or at an error, has not.
        """
        together = self.handler.batch or (len(left) if self.handler.one_commit else 1)
        first = True
        while left and not self.stopping() and (first or time.monotonic() < until) and self.has_slot():
            first = False
            group = self.renew(left[:together])
            if len(group) > 1 and not self.handling.run_together(group):
                # One bad job is to hurt no other; what there is no time for is given back.
                together = self.pace.size = 1
                continue
            if len(group) == 1:
                self.handling.run_one(group[0])
            self.ran += len(group)
            del left[:together]

    def renew(self, group: list[Attempt]) -> list[Attempt]:
        """Those still held, with a lease renewed where a quarter of it is over."""
        now_ms = engine.now_ms(self.using)
        short = [a for a in group if a.lease_ms - now_ms < a.ttr_ms * 3 // 4]
        leases = statements.renew_if_held(self.using, [(a.id, a.attempt) for a in short]) if short else {}
        for attempt in group:
            attempt.on_renewal = self.renew_slot
            if attempt.id in leases:
                attempt.renewed(leases[attempt.id])
        return [a for a in group if a not in short or a.id in leases]

    def give_back(self, left: Sequence[Attempt]) -> None:
        if not left:
            return
        try:
            conclude(self.using, [Verdict(attempt, Outcome.RELEASED) for attempt in left])
        except LeaseLost:
            for attempt in left if len(left) > 1 else ():
                self.give_back([attempt])
        except (DatabaseError, InterfaceError) as error:
            logger.warning(
                "%s: %s jobs could not be given back, their leases will end: %s", self.topic, len(left), error
            )
