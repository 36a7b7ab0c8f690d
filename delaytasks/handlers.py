"""The registry of handlers; Snooze and Skip, which a handler may return; and Retry, which a handler may raise."""

import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from . import conf
from .backoff import DEFAULT_BACKOFF, Backoff
from .exceptions import BadInput
from .validators import check_line, check_topic, to_delay_ms, to_expires_ms, to_ttr_ms

if TYPE_CHECKING:
    from .jobs.handles import Handle
    from .models import Job
    from .worker.attempt import RunningJob

OnSubjectDelete = Literal["keep", "cancel"]
# Type variables of handler(), whose Handle has the type of the decorated function. Their bounds let a type checker
# check the arguments and the result of that function.
Single = TypeVar("Single", bound="Callable[[RunningJob], SingleResult | Coroutine[Any, Any, SingleResult]]")
Batch = TypeVar("Batch", bound="Callable[[list[RunningJob]], BatchResult | Coroutine[Any, Any, BatchResult]]")
ErrorClasses = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class Snooze:
    """The result of a handler that is not done yet: the job runs again after `delay`.

    delay    timedelta, or seconds as int or float, from the end of the attempt; up to 366 days
    reason   str, one line of up to 255 characters, stored in the job's event

    A snooze is not a failure and does not count against max_attempts, but the job's attempt number still
    grows. A batch handler returns one Snooze for all of its jobs, or a mapping of job.id to Snooze or None.

    Raises BadDelay, BadInput. The name comes from Oban, a job queue for Elixir.
    """

    delay: timedelta | float | int
    reason: str = ""

    def __post_init__(self) -> None:
        check_line(self.reason, what="Snooze")
        to_delay_ms(self.delay, max_seconds=366 * 86_400, what="Snooze")

    @property
    def delay_ms(self) -> int:
        """The delay in milliseconds, rounded up."""
        return to_delay_ms(self.delay, max_seconds=366 * 86_400, what="Snooze")


class Polled(Snooze):
    """The Snooze after a poll (delaytasks.poll) with the answer "not yet": the next delay is that of the next step."""


@dataclass(frozen=True)
class Skip:
    """The result of a handler that had nothing to do: the job is cancelled, with the outcome "skipped".

    reason   str, one line of up to 255 characters, stored in the job's event

    The handler's transaction is committed, as if it had returned None. A batch handler returns one Skip for all of its
    jobs, or a mapping as with Snooze.

    Raises BadInput.
    """

    reason: str = ""

    def __post_init__(self) -> None:
        check_line(self.reason, what="Skip")


@dataclass(frozen=True)
class Finished:
    """The result of a forwarded job whose target has accepted it: the job is finished.

    reason   str, one line of up to 255 characters: the target's answer, stored in the job's event
    """

    reason: str

    def __post_init__(self) -> None:
        check_line(self.reason, what="Finished")


@dataclass(frozen=True)
class NotBegun:
    """The result of a job with which a batch handler has not begun, because the topic is held: it stays ready.

    No event is recorded. For forwarded topics.
    """


@dataclass(frozen=True)
class Expired:
    """The result of a forwarded job that has expired while its topic was held: it is skipped, as in a claim."""


SingleResult = Snooze | Skip | None
# With atomic=False the result of a job may be the exception with which its attempt failed.
BatchResult = Snooze | Skip | Mapping[int, Snooze | Skip | None] | Mapping[int, SingleResult | BaseException] | None


class Retry(Exception):
    """The exception with which a handler fails its attempt and chooses the delay before the next one.

    reason   str: the error message that is stored with the job and its event
    delay    timedelta, or seconds as int or float, up to 366 days; None: the topic's backoff

    The attempt counts against max_attempts like any other failed attempt, so the job may be dead
    afterwards. The handler's transaction is always rolled back.

    Raises BadDelay.
    """

    delay_ms: int | None = None  # also of a subclass whose __init__() does not call this one

    def __init__(self, reason: str = "", *, delay: timedelta | float | int | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = None if delay is None else to_delay_ms(delay, max_seconds=366 * 86_400, what="Retry")


@dataclass(frozen=True)
class Handler:
    """A topic's handler function and its options, which handler() explains."""

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
    backoff: Backoff = DEFAULT_BACKOFF
    on_dead: Callable[..., Any] | None = None
    subject: str | None = None  # label of the subjects' model, in lower case
    on_subject_delete: OnSubjectDelete = "keep"
    retry_on: tuple[type[Exception], ...] = ()
    give_up_on: tuple[type[Exception], ...] = ()
    expires_ms: int | None = None

    def gives_up_on(self, error: BaseException) -> bool:
        """Return whether this error makes the job dead at once."""
        if isinstance(error, self.give_up_on):
            return True
        return bool(self.retry_on) and isinstance(error, Exception) and not isinstance(error, (*self.retry_on, Retry))

    def call(self, argument: Any) -> Any:
        """Call the function with a job or a list of jobs, by way of set_caller()'s function if there is one."""
        return self.function(argument) if _caller is None else _caller(self, argument)

    @property
    def retry_within_ms(self) -> int | None:
        """Milliseconds after scheduling by which a job that was taken back is due again; None: no limit. For poll()."""
        within_ms: int | None = getattr(self.function, "retry_within_ms", None)
        return within_ms

    @property
    def forwards(self) -> bool:
        """Whether the function sends the jobs to a target. While that is unavailable, the topic is held."""
        return bool(getattr(self.function, "forwards", False))

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def home(self) -> tuple[str, object]:
        """Where the function is defined. The value is the same if its module is imported twice."""
        code = getattr(self.function, "__code__", None)
        return self.name, (code.co_filename, code.co_firstlineno) if code else self.function


def name_of(function: Callable[..., Any]) -> str:
    """Return the module and the name of a function; of a callable object, such as a partial, those of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


_handlers: dict[str, Handler] = {}
_caller: Callable[[Handler, Any], Any] | None = None
clashes: list[str] = []  # messages for the system check delaytasks.E002


class RowHandlerOptions(TypedDict, total=False):
    """The options of handler() that timeout() and sla() accept."""

    ttr: timedelta | float | int
    max_attempts: int
    queue: str | None
    atomic: bool
    relaxed_commit: bool
    concurrency: int | None
    backoff: Backoff | None
    on_dead: "Callable[[RunningJob | Job], object] | None"
    retry_on: ErrorClasses
    give_up_on: ErrorClasses


class HandlerOptions(RowHandlerOptions, total=False):
    """All options of handler() except batch. poll() and recurring() accept them."""

    one_commit: bool
    subject: type[Any] | str | None
    on_subject_delete: OnSubjectDelete
    expires: timedelta | float | int | None


def check_options(who: str, given: Mapping[str, Any], known: Any) -> None:
    """Raise TypeError if an option is not in the TypedDict `known`. Type checkers report it earlier."""
    for name in given:
        if name not in known.__optional_keys__:
            raise TypeError(f"{who} has no option {name!r}. It takes these options of handler(): "
                            f"{', '.join(sorted(known.__optional_keys__))}.")  # fmt: skip


@overload
def handler(
    topic: str, *, batch: None = None, **options: Unpack[HandlerOptions]
) -> "Callable[[Single], Handle[Single]]": ...
@overload
def handler(topic: str, *, batch: int, **options: Unpack[HandlerOptions]) -> "Callable[[Batch], Handle[Batch]]": ...
def handler(
    topic: str,
    *,
    ttr: timedelta | float | int = 60,
    max_attempts: int = 25,
    queue: str | None = None,
    batch: int | None = None,
    atomic: bool = True,
    one_commit: bool = False,
    relaxed_commit: bool = False,
    concurrency: int | None = None,
    backoff: Backoff | None = None,
    on_dead: "Callable[[RunningJob | Job], object] | None" = None,
    subject: type[Any] | str | None = None,
    on_subject_delete: OnSubjectDelete = "keep",
    retry_on: ErrorClasses = (),
    give_up_on: ErrorClasses = (),
    expires: timedelta | float | int | None = None,
) -> "Callable[[Callable[..., Any]], Handle[Any]]":
    """Register the decorated function as the handler of `topic`. Return its Handle.

    The Handle is called like the function. Its methods schedule(), cancel(), reschedule() and run_now() are
    those of delaytasks for this topic; they take a model instance or a key.

    topic           str, 1 to 100 of A-Z a-z 0-9 . _ -, beginning with a letter or digit
    ttr             the longest that one attempt may take: timedelta, or seconds as int or float; up to
                    seven days
    max_attempts    int from 1 on: the number of failed or timed-out attempts after which the job is dead;
                    snoozes do not count. With the default backoff, 25 attempts take about three days
    queue           str, the Celery queue in which the topic's jobs run; None: Celery's default
    batch           int from 1 on: the function is called with a list of up to `batch` jobs, in one
                    transaction unless atomic=False; None: with one job
    atomic          bool: run the function and finish the job in one transaction. Set it to False for a
                    handler that works outside the database, and put the last part of that handler into
                    `with job.finishing():`
    one_commit      bool: several jobs may share one commit; if one of them fails, all of them run again
                    one by one
    relaxed_commit  bool: on PostgreSQL the commit does not wait for the disk. If the server crashes, the
                    jobs of lost commits run again
    concurrency     int from 1 on: the run slots of the topic, that is, the number of runs at the same
                    time; None: the CONCURRENCY setting. The topic's row in Topic may override both
    backoff         delaytasks.backoff.Backoff: the delays after failed attempts; None: 5 s, doubled after each
                    failure, at most 6 hours, each varied by up to 20 %
    retry_on        exception class or tuple of them: only these are retried; any other exception makes the job
                    dead at once. (): every exception is retried. A Retry and an exceeded TTR are always retried
    give_up_on      exception class or tuple of them: these make the job dead at once
    expires         timedelta or seconds: a job that has not begun so long after its due time is not run; it
                    ends as skipped. None: jobs run however late
    on_dead         callable, called with the job in the transaction that makes the job dead. The job is a
                    RunningJob, or its row (models.Job) if the TTR was exceeded or the worker died. The result is
                    ignored. An exception is logged, and the job is dead nevertheless
    subject         a model or its label ("shop.Order"): the model of the jobs' subjects. A subject of
                    another model is refused; None: any model
    on_subject_delete  "cancel": deleting a subject cancels its live jobs of this topic, in the same
                    transaction; needs subject. Django then loads the model's rows before it deletes them.
                    "keep": the jobs stay as they are

    The function receives a RunningJob, or a list of them with batch. It returns None (finished), a Snooze or a
    Skip. If it raises, the job is retried after a delay, until max_attempts attempts have failed. With batch it
    may also return a mapping of job.id to None, Snooze or Skip. With batch and atomic=False the mapping may also
    contain an exception: the attempt of that job failed with it. Any other exception that is returned counts as
    raised. If a call with several jobs raises, each job is run alone.

    The function may be a coroutine function (`async def`), and so may on_dead: the worker runs it in an event
    loop. With atomic=True the asynchronous methods of Django's ORM work inside its transaction. It must not
    be a generator function: every attempt would fail. Jobs run at least once; with atomic=True, their effects
    in the same database happen exactly once.

    Raises BadTopic, BadTTR, ValueError. Never imports models and never uses Redis or the database. The
    system check delaytasks.E002 reports a second function for the same topic.
    """
    _check_values(topic, max_attempts, batch, concurrency)
    check_callback(topic, "on_dead", on_dead)
    if not (backoff is None or isinstance(backoff, Backoff)):
        raise ValueError(f"handler({topic!r}): backoff is {backoff!r}; give a Backoff of delaytasks.backoff.")
    _check_flags(topic, atomic=atomic, one_commit=one_commit, relaxed_commit=relaxed_commit)
    _check_combination(topic, batch, atomic, one_commit)
    if not (queue is None or isinstance(queue, str)):
        raise ValueError(f"handler({topic!r}): queue is {queue!r}; it must be the name of a Celery queue.")
    _check_on_subject_delete(topic, on_subject_delete, subject)
    topic = check_topic(topic)
    ttr_ms = to_ttr_ms(ttr)
    label = _subject_label(topic, subject)
    retried, given_up = _error_classes(topic, "retry_on", retry_on), _error_classes(topic, "give_up_on", give_up_on)
    expires_ms = None if expires is None else to_expires_ms(expires)

    def register(function: Callable[..., Any]) -> "Handle[Any]":
        from .jobs.handles import Handle  # imported late: jobs/ is in a higher layer than this module

        function = function.function if isinstance(function, Handle) else function
        if not callable(function):
            raise ValueError(f"handler({topic!r}) decorates {function!r}, which cannot be called; give a function.")
        check_parameters(topic, function, "job" if batch is None else "jobs")
        add(
            Handler(
                topic, function, ttr_ms, max_attempts, queue, batch, atomic, one_commit, relaxed_commit,
                concurrency, backoff or DEFAULT_BACKOFF, on_dead, label, on_subject_delete,
                retried, given_up, expires_ms,
            )
        )  # fmt: skip
        return Handle(topic, function)

    return register


def _check_values(topic: str, max_attempts: int, batch: int | None, concurrency: int | None) -> None:
    optional = {name: value for name, value in (("batch", batch), ("concurrency", concurrency)) if value is not None}
    for name, value in {"max_attempts": max_attempts, **optional}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"handler({topic!r}): {name} is {value!r}; it must be a whole number from 1 on.")


def check_callback(topic: str, option: str, function: object) -> None:
    """Raise ValueError if an optional function cannot be called with a job."""
    if function is None:
        return
    if not callable(function):
        raise ValueError(f"handler({topic!r}): {option} is {function!r}; give a function.")
    check_parameters(topic, function, "job")


def check_parameters(topic: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise ValueError if a function cannot be called with these arguments, given by name, in this order.

    A decorated function is not unwrapped, because its decorator may add or remove arguments.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ValueError(
            f"handler({topic!r}): {name_of(function)} takes {signature}, but is called with ({', '.join(arguments)})."
        ) from None


def _check_flags(topic: str, **flags: bool) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"handler({topic!r}): {name} is {value!r}; use True or False.")


def _check_combination(topic: str, batch: int | None, atomic: bool, one_commit: bool) -> None:
    if one_commit and (batch is not None or not atomic):
        raise ValueError(f"handler({topic!r}): one_commit needs atomic=True and no batch.")


def _check_on_subject_delete(topic: str, on_subject_delete: str, subject: type[Any] | str | None) -> None:
    if on_subject_delete not in ("keep", "cancel"):
        raise ValueError(f"handler({topic!r}): on_subject_delete is {on_subject_delete!r}; use 'keep' or 'cancel'.")
    if on_subject_delete == "cancel" and subject is None:
        raise ValueError(f"handler({topic!r}): on_subject_delete needs subject, the model of the jobs' subjects.")


def _subject_label(topic: str, subject: type[Any] | str | None) -> str | None:
    """Return the lower-case label of a model or label. A proxy model has the label of its concrete model."""
    if subject is None:
        return None
    meta = getattr(subject, "_meta", None)
    label = subject if isinstance(subject, str) else getattr(getattr(meta, "concrete_model", None), "_meta", meta)
    label = getattr(label, "label", label)
    if not isinstance(label, str) or not re.fullmatch(r"\w+\.\w+", label):
        raise ValueError(f"handler({topic!r}): subject is {subject!r}; give a model or a label, 'shop.Order'.")
    return label.lower()


def check_subject(topic: str, label: str) -> None:
    """Raise BadInput if the topic's handler takes subjects of another model than this one."""
    handler_ = find(topic)
    if handler_ is not None and handler_.subject not in (None, label):
        raise BadInput(f"subject is a {label}, but jobs of {topic!r} are about a {handler_.subject}.")


def _error_classes(topic: str, option: str, given: ErrorClasses) -> tuple[type[Exception], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ValueError(f"handler({topic!r}): {option} contains {each!r}, which is not an exception class.")
    return classes


def add(new: Handler) -> None:
    """Register a handler. If another function already handles the topic, only add a message to `clashes`."""
    old = _handlers.get(new.topic)
    if old is not None and old.home != new.home:
        clashes.append(f"Topic {new.topic!r} has two handlers: {old.name} and {new.name}.")
        return
    _handlers[new.topic] = new


def set_caller(caller: Callable[[Handler, Any], Any]) -> None:
    """Let Handler.call() call `caller(handler, argument)`, which calls the handler's function or decides not to."""
    global _caller
    _caller = caller


def find(topic: str) -> Handler | None:
    """Return the topic's handler, or None if this process has none and leaves the topic's jobs to other workers."""
    return _handlers.get(topic)


def handled() -> list[str]:
    """Return the topics that have a handler in this process, sorted."""
    return sorted(_handlers)


def unregister(topic: str) -> None:
    """Unregister a topic's handler. For tests."""
    _handlers.pop(topic, None)


_UNLIMITED = 2**31 - 1
_DECLARED_OPTIONS = {"ttr", "max_attempts", "concurrency"}


def declared_problems(declared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a message for each problem in DELAYTASKS["TOPICS"]."""
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
            for option in ("max_attempts", "concurrency"):
                value = options.get(option, 1)
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    problems.append(f"TOPICS[{name!r}][{option!r}] is {value!r}; it must be a whole number from 1 on.")
        except (BadInput, TypeError) as error:
            problems.append(f"TOPICS[{name!r}]: {error}")
    return problems


def known() -> list[str]:
    """Return the topics that have a handler in this process or are declared in the settings, sorted."""
    return sorted(_handlers.keys() | conf.get().topics.keys())


def ttr_ms(topic: str) -> int:
    """Return the default TTR of a topic's jobs, in milliseconds."""
    handler_ = find(topic)
    return handler_.ttr_ms if handler_ else to_ttr_ms(conf.get().topics.get(topic, {}).get("ttr", 60))


def expires_ms(topic: str, own_ms: int | None) -> int | None:
    """Return how long after its due time a job may begin, in milliseconds; None: however late.

    own_ms   the value stored with the job; None: the value of its topic's handler is used
    """
    handler_ = find(topic)
    return handler_.expires_ms if own_ms is None and handler_ else own_ms


def max_attempts(topic: str) -> int:
    handler_ = find(topic)
    if handler_:
        return handler_.max_attempts
    return int(conf.get().topics.get(topic, {}).get("max_attempts", conf.get().max_attempts))


def max_attempts_if_known(topic: str) -> int:
    """Return max_attempts of the topic, or 2³¹ − 1 if this process does not know the topic.

    Workers that know the topic apply its limit.
    """
    return max_attempts(topic) if topic in known() else _UNLIMITED


def concurrency(topic: str) -> int:
    """Return the number of run slots that the topic's handler or the settings give it.

    The topic's row in Topic may override this number; it is not read here.
    """
    handler_ = find(topic)
    if handler_ and handler_.concurrency:
        return handler_.concurrency
    return int(conf.get().topics.get(topic, {}).get("concurrency", conf.get().concurrency))
