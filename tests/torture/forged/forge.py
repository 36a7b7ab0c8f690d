"""Forged evidence for the tests of the checker.

The clocks agree: `ms` after the start is BEGAN_MS + ms by the database's clock and ms * 1e6 by the ledger's.
"""

from dataclasses import replace
from typing import Any

from delaytasks.states import Outcome, State

from ..evidence import Effect, Evidence, Happened, Place, Row
from ..ledger import Entry

BEGAN_MS = 1_900_000_000_000
ENDS_MS = 100_000
TTR_MS = 4_000
TOPIC = "torture.once"


class Forge:
    """Builds evidence. `ms` is the time, `job` the id; the key is "k" and the id."""

    def __init__(self) -> None:
        self.evidence = Evidence(places=[], now_ms=BEGAN_MS + ENDS_MS, at=ENDS_MS * 1_000_000)
        self.requests = 0

    # The ledger

    def write(self, kind: str, ms: int, **fields: Any) -> Entry:
        entry = {"kind": kind, "at": ms * 1_000_000, "pid": 1, "thread": 1} | fields
        self.evidence.entries.append(entry)
        return entry

    def asks(self, op: str, job: int, ms: int, *, topic: str = TOPIC, delay_ms: int | None = None, **more: Any) -> str:
        self.requests += 1
        n = f"n{self.requests}"
        self.write("asks", ms, n=n, op=op, topic=topic, key=f"k{job}", delay_ms=delay_ms, **more)
        return n

    def answers(
        self, n: str, said: str, ms: int, job: int | None = None, *, due: int | None = None, why: str = ""
    ) -> None:
        self.write("answers", ms, n=n, said=said, job=job, due_ms=None if due is None else BEGAN_MS + due, why=why)

    def request(self, op: str, job: int, ms: int, said: str, *, due: int | None = None, **more: Any) -> None:
        """A request, answered 2 ms later."""
        self.answers(self.asks(op, job, ms, topic=more.pop("topic", TOPIC)), said, ms + 2, job, due=due, **more)

    def promised(self, job: int, *, due: int = 1_000, topic: str = TOPIC, said: str = "scheduled") -> None:
        """Scheduled at 0, answered at 2."""
        n = self.asks("schedule", job, 0, topic=topic, delay_ms=due)
        self.answers(n, said, 2, None if said != "scheduled" else job, due=due if said == "scheduled" else None)

    def begins(
        self, job: int, ms: int, *, attempt: int = 1, due: int = 1_000, topic: str = TOPIC, pid: int = 7
    ) -> Entry:
        fields = {"job": job, "topic": topic, "key": f"k{job}", "attempt": attempt}
        return self.write("begins", ms, **fields, due_ms=BEGAN_MS + due, now_ms=BEGAN_MS + ms, pid=pid)

    # The system

    def row(
        self, job: int, state: State, *, attempt: int = 0, due: int = 1_000, topic: str = TOPIC, **more: Any
    ) -> Row:
        row = Row(job, topic, f"k{job}", int(state), BEGAN_MS + due, attempt, 0, None, TTR_MS)
        self.evidence.rows.append(replace(row, **more))
        return self.evidence.rows[-1]

    def event(
        self, job: int, outcome: Outcome, *, attempt: int = 0, due: int = 1_000, reserved: int | None = None,
        done: int = 1_020, next_due: int | None = None, worker: str = "w1",
    ) -> None:  # fmt: skip
        def ms(at: int | None) -> int | None:
            return None if at is None else BEGAN_MS + at

        event = Happened(job, outcome, attempt, BEGAN_MS + due, ms(reserved), BEGAN_MS + done, ms(next_due), worker)
        self.evidence.events.append(event)

    def effect(self, job: int, *, attempt: int = 1, ms: int = 1_015) -> None:
        self.evidence.effects.append(Effect(job, attempt, BEGAN_MS + ms))

    def place(self, job: int, ms: int, *, ready: bool = False, topic: str = TOPIC) -> None:
        places = self.evidence.places
        assert places is not None
        places.append(Place(job, topic, ready, BEGAN_MS + ms))

    # Whole histories without a violation

    def attempt(
        self, job: int, ms: int, outcome: Outcome, *, attempt: int = 1, due: int = 1_000, next_due: int | None = None,
        pid: int = 7,
    ) -> None:  # fmt: skip
        """Reserved at ms, started 5 ms later, ended 20 ms later."""
        self.begins(job, ms + 5, attempt=attempt, due=due, pid=pid)
        self.event(job, outcome, attempt=attempt, due=due, reserved=ms, done=ms + 20, next_due=next_due)

    def attempt_over_http(self, job: int, ms: int, outcome: Outcome, *, attempt: int = 1, due: int = 1_000) -> None:
        self.begins(job, ms + 5, attempt=attempt, due=due, topic="torture.http")
        self.write("outside", ms + 6, job=job, topic="torture.http", key=f"k{job}", attempt=attempt)
        self.event(job, outcome, attempt=attempt, due=due, reserved=ms, done=ms + 20)

    def finished(self, job: int, *, due: int = 1_000, attempt: int = 1, ms: int | None = None) -> None:
        """The last attempt with effect, event and row."""
        ms = due if ms is None else ms
        self.attempt(job, ms, Outcome.FINISHED, attempt=attempt, due=due)
        self.effect(job, attempt=attempt, ms=ms + 15)
        self.row(job, State.FINISHED, attempt=attempt, due=due)

    def done(self, job: int = 1) -> None:
        """Scheduled, and finished by its first attempt."""
        self.promised(job)
        self.finished(job)

    def consumed(self, job: int) -> None:
        """The same over HTTP."""
        self.promised(job, topic="torture.http")
        self.begins(job, 1_005, topic="torture.http")
        self.write("outside", 1_006, job=job, topic="torture.http", key=f"k{job}", attempt=1)
        self.write("finishes", 1_022, job=job, attempt=1)
        self.event(job, Outcome.FINISHED, attempt=1, reserved=1_000)
        self.row(job, State.FINISHED, attempt=1, topic="torture.http")

    def cancelled(self, job: int) -> None:
        """Scheduled, and cancelled before its due time."""
        self.promised(job)
        self.request("cancel", job, 500, "cancelled")
        self.event(job, Outcome.CANCELLED, done=501)
        self.row(job, State.CANCELLED)

    def fenced(self, job: int, *, begins: int = 1_005) -> None:
        """Scheduled, reserved at 1,000, and cancelled at 1,100 with running="fence"; answered at 1,102."""
        self.promised(job)
        self.begins(job, begins)
        self.request("cancel", job, 1_100, "cancelled")
        self.event(job, Outcome.CANCELLED, attempt=1, reserved=1_000, done=1_101)
        self.row(job, State.CANCELLED, attempt=1)

    def pending(self, job: int, *, due: int = ENDS_MS + 60_000) -> None:
        """Scheduled for later, and in the mirror."""
        self.promised(job, due=due)
        self.row(job, State.DELAYED, due=due)
        self.place(job, due)

    def held(self, job: int, *, lease: int = ENDS_MS + 2_000) -> None:
        """Running now."""
        self.promised(job, due=ENDS_MS - 2_000)
        self.begins(job, ENDS_MS - 1_995, due=ENDS_MS - 2_000)
        self.row(job, State.RESERVED, attempt=1, due=ENDS_MS - 2_000, lease_ms=BEGAN_MS + lease)
        self.place(job, lease)
