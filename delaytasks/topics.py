"""The registry of topics: which function handles which topic, and under what terms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from . import conf
from .backoff import Backoff
from .exceptions import BadInput
from .rules import check_topic, to_delay_ms, to_ttr_ms


@dataclass(frozen=True)
class Snooze:
    """ "Not yet, ask again": a handler returns it to be called again after `delay`.

    delay   timedelta or seconds. Uses up none of the job's max_attempts.
    """

    delay: timedelta | float | int

    def __post_init__(self) -> None:
        to_delay_ms(self.delay, max_seconds=366 * 86_400, what="Snooze")

    @property
    def delay_ms(self) -> int:
        return to_delay_ms(self.delay, max_seconds=366 * 86_400, what="Snooze")


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again after `delay` instead of the topic's backoff.

    delay    timedelta or seconds; None means the topic's backoff.
    reason   kept as the event's error.
    """

    def __init__(self, reason: str = "", *, delay: timedelta | float | int | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = None if delay is None else to_delay_ms(delay, max_seconds=366 * 86_400, what="Retry")


@dataclass(frozen=True)
class Handler:
    """A topic's handler and its terms; see `handler` for what each one means."""

    topic: str
    function: Callable[..., Any]
    ttr_ms: int
    max_attempts: int
    queue: str | None = None
    batch: int | None = None
    atomic: bool = True
    one_commit: bool = False
    relaxed_commit: bool = False
    concurrency: int | None = None
    backoff: Backoff = field(default_factory=Backoff)
    on_dead: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def home(self) -> tuple[str, object]:
        """Where the function is defined: the same again if its module is imported twice."""
        code = getattr(self.function, "__code__", None)
        return self.name, (code.co_filename, code.co_firstlineno) if code else self.function


_handlers: dict[str, Handler] = {}
clashes: list[str] = []  # one sentence each; reported by the system check delaytasks.E002


def handler(
    topic: str,
    *,
    ttr: timedelta | float | int = 60,
    max_attempts: int = 5,
    queue: str | None = None,
    batch: int | None = None,
    atomic: bool = True,
    one_commit: bool = False,
    relaxed_commit: bool = False,
    concurrency: int | None = None,
    backoff: Backoff | None = None,
    on_dead: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the handler of `topic`; the function itself is returned unchanged.

    ttr             seconds or timedelta that one attempt may take
    max_attempts    failed or expired attempts until the job is dead; snoozes do not count
    queue           Celery queue of the topic's bells; None: Celery's default
    batch           the function gets a list of up to so many jobs, in one call and one transaction
    atomic          the call runs in one transaction with the job's finish. False for work outside
                    the database; use `with job.finishing():` for its last part
    one_commit      single jobs may share one commit; if one fails they run again one by one
    relaxed_commit  PostgreSQL: the finish does not wait for the disk. What a crash loses runs again
    concurrency     run slots; None: the CONCURRENCY setting. A Topic row overrides it while it runs
    backoff         delays between failed attempts
    on_dead         called with the job in the transaction that makes it dead

    Raises BadTopic, BadTTR, ValueError. Never imports models, touches Redis or the database.
    """
    for name, value in (("max_attempts", max_attempts), ("batch", batch), ("concurrency", concurrency)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"handler({topic!r}): {name} is {value!r}; it must be a whole number from 1 on.")
    if batch is not None and not atomic:
        raise ValueError(f"handler({topic!r}): a batch handler runs in one transaction; atomic=False is not for it.")
    if one_commit and (batch is not None or not atomic):
        raise ValueError(f"handler({topic!r}): one_commit is for single jobs with atomic=True.")
    if not (queue is None or isinstance(queue, str)):
        raise ValueError(f"handler({topic!r}): queue is {queue!r}; it must be the name of a Celery queue.")
    check_topic(topic)
    ttr_ms = to_ttr_ms(ttr)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        add(
            Handler(
                topic, function, ttr_ms, max_attempts, queue, batch, atomic, one_commit, relaxed_commit,
                concurrency, backoff or Backoff(), on_dead,
            )
        )  # fmt: skip
        return function

    return register


def add(new: Handler) -> None:
    """Register a handler. A second function for the same topic is not taken: the first stays, the clash is kept."""
    old = _handlers.get(new.topic)
    if old is not None and old.home != new.home:
        clashes.append(f"Topic {new.topic!r} has two handlers: {old.name} and {new.name}.")
        return
    _handlers[new.topic] = new


def find(topic: str) -> Handler | None:
    """The topic's handler in this process, or None: then it is for somebody else and left alone."""
    return _handlers.get(topic)


def handled() -> list[str]:
    """The topics that have a handler in this process, sorted."""
    return sorted(_handlers)


def forget(topic: str) -> None:
    """Remove a topic's handler again. For tests."""
    _handlers.pop(topic, None)


_WITHOUT_END = 2**31 - 1
_DECLARED_OPTIONS = {"ttr", "max_attempts", "concurrency"}


def declared_problems(declared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with DELAYTASKS["TOPICS"], one sentence each."""
    problems = []
    for name, options in declared.items():
        try:
            check_topic(name)
            unknown = set(options) - _DECLARED_OPTIONS
            if unknown:
                problems.append(
                    f"TOPICS[{name!r}] has unknown options {sorted(unknown)}; known are {sorted(_DECLARED_OPTIONS)}."
                )
            to_ttr_ms(options.get("ttr", 60))
            for whole in ("max_attempts", "concurrency"):
                value = options.get(whole, 1)
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    problems.append(f"TOPICS[{name!r}][{whole!r}] is {value!r}; it must be a whole number from 1 on.")
        except (BadInput, TypeError) as error:
            problems.append(f"TOPICS[{name!r}]: {error}")
    return problems


def known() -> list[str]:
    """The topics that have a handler in this process or are declared in the settings, sorted."""
    return sorted(_handlers.keys() | conf.get().topics.keys())


def ttr_ms(topic: str) -> int:
    """The TTR of a topic's jobs unless a job says otherwise."""
    found = find(topic)
    return found.ttr_ms if found else to_ttr_ms(conf.get().topics.get(topic, {}).get("ttr", 60))


def max_attempts(topic: str) -> int:
    found = find(topic)
    if found:
        return found.max_attempts
    return conf.get().topics.get(topic, {}).get("max_attempts", conf.get().max_attempts)


def judged_max_attempts(topic: str) -> int:
    """max_attempts of a topic that is known here; without end for another, which is for somebody else to judge."""
    return max_attempts(topic) if topic in known() else _WITHOUT_END


def concurrency(topic: str) -> int:
    """Run slots of the topic unless its Topic row says otherwise."""
    found = find(topic)
    if found and found.concurrency:
        return found.concurrency
    return conf.get().topics.get(topic, {}).get("concurrency", conf.get().concurrency)
