"""How handlers misbehave and how their jobs must end. Plain data; the handlers are in app/misbehaving.py.

The handler misbehaves at each attempt for half of a topic's jobs, and only at the first attempt for the others.
"""

from typing import NamedTuple

ATTEMPTS = 4  # max_attempts of these topics
OVERRUN = "delaytasks:timed_out"  # stored in a job whose handler was interrupted
LOST = "delaytasks:worker_lost"  # stored in a job whose process has ended


class Manner(NamedTuple):
    name: str
    error: str = ""  # part of a dead job's error; empty: the job finishes
    ttr_seconds: float = 4  # longer than the two seconds in which the end of a process is noticed
    jobs: int = 6  # the handler misbehaves each time for half of them
    slots: int | None = None  # limited, so that hanging handlers leave processes for other topics
    atomic: bool = True
    databases: tuple[str, ...] = ("postgres", "sqlite")

    @property
    def topic(self) -> str:
        return f"torture.bad.{self.name}"


POSTGRES = ("postgres",)
FAMILIES: dict[str, tuple[Manner, ...]] = {
    "raises": (
        Manner("raises", "RuntimeError: on purpose"),
        Manner("cleanup", "OSError: in its cleanup"),
        Manner("unspeakable", "Unspeakable: <exception str() failed>"),
        Manner("megabytes", "RuntimeError: xxxxxxxxxx"),
        Manner("unprintable", r"RuntimeError: \x00 \ud800"),
        Manner("recursion", "RecursionError: maximum recursion depth"),
    ),
    "hangs": (
        Manner("sleeps", OVERRUN, ttr_seconds=1, jobs=4, slots=2),
        Manner("queries", OVERRUN, ttr_seconds=1, jobs=4, slots=2, databases=POSTGRES),
        Manner("lingers", ttr_seconds=1, jobs=4, slots=2),
    ),
    "deaf": (
        Manner("deaf", LOST, ttr_seconds=1, jobs=2, slots=1),
        Manner("unalarmed", LOST, ttr_seconds=1, jobs=2, slots=1),
    ),
    "forks": (
        Manner("fork-returns"),
        Manner("fork-raises"),
        Manner("fork-exits"),
        Manner("fork-works"),
        Manner("fork-lives-on"),
        Manner("fork-outside", atomic=False),
        Manner("fork-orphan", LOST, jobs=4),
    ),
    "memory": (Manner("memory", "MemoryError", ttr_seconds=20, jobs=6, slots=2),),
    "nonsense": (
        Manner("object"),
        Manner("text"),
        Manner("generator", "TypeError: "),
        Manner("async-generator", "TypeError: "),
        Manner("negative", "BadDelay: Snooze is -1"),
        Manner("absurd", "BadDelay: Snooze is 1e+300"),
    ),
    "itself": (Manner("again"), Manner("cancels")),
    "closes": (
        Manner("close", "closed"),
        Manner("close-raw", "closed", databases=POSTGRES),
        Manner("close-outside", atomic=False),
        Manner("close-raw-outside", "closed", atomic=False, databases=POSTGRES),
    ),
    "open": (
        Manner("open-block", "left a transaction open"),
        Manner("open-outside", "left a transaction open", atomic=False),
        Manner("open-by-hand", "left a transaction open", atomic=False),
        Manner("open-and-raises", "RuntimeError: on purpose", atomic=False),
        Manner("autocommit", "TransactionManagementError"),
        Manner("broken", "current transaction is aborted", databases=POSTGRES),
    ),
    "exits": (
        Manner("sys-exit", "SystemExit: 3"),
        Manner("interrupt", "KeyboardInterrupt", jobs=4),
        Manner("generator-exit", "GeneratorExit"),
        Manner("os-exit", LOST, jobs=4),
        Manner("kill", LOST, jobs=4),
    ),
    "process": (
        Manner("ignores-alarm"),
        Manner("directory"),
        Manner("environment"),
        Manner("zone"),
        Manner("logs"),
    ),
}
MANNERS = {manner.name: manner for family in FAMILIES.values() for manner in family}
