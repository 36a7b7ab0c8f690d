"""Add, take and finish jobs over HTTP. Needs Python 3.11 and nothing else: this file may be copied alone.

    client = Client("https://tasks.example.com/api/queue/", token)
    client.add("order.close", "order:1042", delay=1800, ttr=60, body={"order": 1042})

    Consumer(client, "order.close", close_order, threads=4).run()       # until SIGTERM

What is not promised: a job may be handed out twice (its consumer was killed, or was slower than its
TTR), so a handler has to be idempotent. `Job.attempt` is the fence: what an earlier attempt still
wants to say is refused.
"""

import contextlib
import copy
import http.client
import itertools
import json
import logging
import os
import queue
import random
import selectors
import signal
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import urlsplit

__all__ = [
    "Client", "ClientError", "Consumer", "Job", "Refused", "Retry", "Snooze", "TooManyRequests", "Unauthorized",
    "Unavailable",
]  # fmt: skip

logger = logging.getLogger("delaytasks.client")

Delay = timedelta | float | int

# Done twice these do no harm, and the second answer is as true as the first. (A job whose pop's answer was lost is
# held by nobody until its TTR is over; that costs it an attempt.)
REPEATED = ("pop", "touch", "peek")
IDLE_SECONDS = 30  # an older connection may have been forgotten by something on the way that told nobody
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 0.5, 30.0  # while the server is away
EMPTY_SECONDS = 1.0  # an empty queue is asked no more often than this, whoever cut the wait short
PARTING_SECONDS = 2.0  # how long a poll that is called off may take to end
SIGNAL_SECONDS = 0.5  # after which a signal is heard at the latest
TAKEN_AT_ONCE = 50
ERROR_CHARACTERS = 4_000  # of a traceback: its end says what happened


class ClientError(Exception):
    """The queue did not do what was asked."""


class Refused(ClientError):
    """The server understood, and said no: nothing was changed.

    error    its reason
    status   200: the state of things forbids it. 400, 413: the command itself is wrong; asking again is no use
    value    what the answer held besides
    """

    def __init__(self, error: str, status: int = 200, value: Any = None) -> None:
        super().__init__(error)
        self.error, self.status, self.value = error, status, value


class Unauthorized(ClientError):
    """The token is unknown, expired or revoked (status 401), or was not granted this (403)."""

    def __init__(self, error: str, status: int = 401) -> None:
        super().__init__(error)
        self.status = status


class TooManyRequests(ClientError):
    """The token's rate is used up; nothing was done. The next command has a chance after `retry_after_seconds`."""

    def __init__(self, error: str, retry_after_seconds: float) -> None:
        super().__init__(error)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(ClientError):
    """No answer, or a 5xx: the network, a proxy or the server is out of order for now.

    perhaps_done          True when the command was sent and may have been carried out, False when it was not
    retry_after_seconds   what the server asked for; 0 when it said nothing
    """

    def __init__(self, error: str, *, perhaps_done: bool, retry_after_seconds: float = 0) -> None:
        super().__init__(error)
        self.perhaps_done, self.retry_after_seconds = perhaps_done, retry_after_seconds


@dataclass(frozen=True)
class Job:
    """A job that this process holds until `deadline`, or longer if it is touched.

    id                 the key it was added with, unique among the live jobs
    attempt            the fence: it goes with every word about the job
    ttr                seconds from each touch to the end of the lease
    due_at, deadline   aware, by the server's clock
    lost               set by a Consumer when the lease is lost: somebody else may have the job, so stop
    number             tells it from a later job with the same id, whose attempts count from 1 again
    """

    id: str
    topic: str
    attempt: int
    body: Any
    ttr: float
    due_at: datetime
    deadline: datetime
    lost: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    number: int | None = None


@dataclass(frozen=True)
class Snooze:
    """ "Not yet, ask again": returned by a Consumer's handler. Uses up none of the job's attempts.

    delay   timedelta or seconds
    """

    delay: Delay


class Retry(Exception):
    """Raised by a Consumer's handler: this attempt failed, try again after `delay` (None: the topic's backoff)."""

    def __init__(self, reason: str = "", *, delay: Delay | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class Client:
    """The commands of one queue, for any number of threads; each uses a connection of its own and keeps it.

    url               the address of the queue, usually https://.../api/queue/
    timeout_seconds   for connecting, and for each answer; a pop that waits gets its wait in addition
    ssl_context       for https; without it certificates are verified against the system's

    Proxies named in the environment are not used and redirects are not followed: the token goes to `url` alone.

    A connection that the server closed while it was idle is found before it is used. If it breaks in
    the very moment of use, a command that was not sent completely is sent once more over a new one.
    A command that was sent and got no answer is repeated once if that is harmless: peek, touch, pop
    (a job that the first pop took comes back after its TTR), and add with on_conflict="keep". Others
    are not, since the second answer could be untrue: an add may be refused because of its own first
    try, a finish because it has been finished. They raise Unavailable with perhaps_done=True; the
    caller decides. Nothing is repeated after a timeout or on a new connection.

    Every command raises Refused, Unauthorized, TooManyRequests, Unavailable, all of them ClientError.
    """

    _idle: list[tuple[float, http.client.HTTPConnection]]
    _waiting: set[http.client.HTTPConnection]

    def __init__(
        self, url: str, token: str, *, timeout_seconds: float = 10, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query:
            raise ValueError(f"The url of a queue looks like https://tasks.example.com/api/queue/, not like {url!r}.")
        if not (token and token.isascii() and token.isprintable() and " " not in token):
            raise ValueError("The token is empty or holds a character that no token has. Was a line's end read too?")
        self.url, self.timeout_seconds = url, timeout_seconds
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path or "/"
        self._tls = (ssl_context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "delaytasks-client",
        }
        self._forget_connections()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    # Commands

    def add(
        self, topic: str, id: str, *, delay: Delay, ttr: Delay, body: Any = None, on_conflict: str = "reject"
    ) -> str:
        """ "created", "kept" or "replaced": what became of the promise to hand out `body` after `delay`.

        id            the caller's name for it, unique among live jobs: best the topic's word and a business id
        delay, ttr    timedelta or seconds
        on_conflict   for an id that is live: "reject" raises Refused, "keep" leaves it alone, "replace" replaces it

        After Unavailable with perhaps_done=True the same add with on_conflict="keep" makes sure that
        the job is there; "keep" also survives a broken connection without a question.
        """
        command = {"command": "add", "topic": topic, "id": id, "delay": _seconds(delay), "TTR": _seconds(ttr)}
        return str(self._ask(command | {"body": body, "on_conflict": on_conflict})["result"])

    def pop(self, topic: str, *, wait: float = 0, consumer: str = "") -> Job | None:
        """The job that has been due the longest, now held by the caller. None: there is none within `wait` seconds."""
        return next(iter(self.pop_many(topic, 1, wait=wait, consumer=consumer)), None)

    def pop_many(self, topic: str, count: int, *, wait: float = 0, consumer: str = "") -> list[Job]:
        """Up to `count` jobs, at least one unless there is none within `wait` seconds. Never waits for more than one.

        consumer   a name of this process, kept with the job for people to see
        """
        command = {"command": "pop", "topic": topic, "count": count, "wait": wait, "consumer": consumer}
        said = self._ask(command, wait=wait)
        return [
            Job(
                job["id"], topic, job["attempt"], job["body"], job["TTR"],
                datetime.fromisoformat(job["due_at"]), datetime.fromisoformat(job["deadline"]), number=job.get("job"),
            )
            for job in said["value"] or ()
        ]  # fmt: skip

    def finish(self, job: Job) -> None:
        """Done with it. Raises Refused when the lease was lost: the job is, or will be, somebody else's."""
        self._ask(_about(job, "finish"))

    def touch(self, job: Job, *, timeout_seconds: float | None = None) -> datetime:
        """The new deadline, a whole TTR from now. Raises Refused when the lease was lost."""
        said = self._ask(_about(job, "touch"), timeout_seconds=timeout_seconds)
        return datetime.fromisoformat(said["value"])

    def release(self, job: Job, *, delay: Delay | None = None, error: str = "") -> str:
        """Give it back: "delayed", or "dead" when its attempts are used up.

        delay   timedelta or seconds until it is due again; None: at once, or with an error after the topic's backoff
        error   why it failed, of which the last 4,000 characters are kept; without one it is handed back, at no cost

        Raises Refused when the lease was lost.
        """
        later = {} if delay is None else {"delay": _seconds(delay)}
        return str(self._ask(_about(job, "release") | later | _given(error=_readable(error)))["value"])

    def bury(self, job: Job, reason: str = "") -> None:
        """Hopeless: it is dead now, and staff can retry it. Raises Refused when the lease was lost."""
        self._ask(_about(job, "bury") | _given(reason=_readable(reason)))

    def delete(self, id: str, *, topic: str = "") -> str:
        """Call a job off: "cancelled", "running" (it was not disturbed), "already finished" or "unknown".

        topic   only needed when jobs of several topics have this id
        """
        try:
            return str(self._ask({"command": "delete", "id": id} | _given(topic=topic))["value"])
        except Refused as refused:
            if not isinstance(refused.value, str):
                raise
            return refused.value

    def peek(self, id: str = "", *, topic: str = "") -> dict[str, Any] | None:
        """The job with this id, or the next one of the topic (None: it has none), as the server describes it.

        Changes nothing. Raises Refused when no job has the id.
        """
        found: dict[str, Any] | None = self._ask({"command": "peek"} | _given(id=id, topic=topic))["value"]
        return found

    # Connections

    def close(self) -> None:
        """Closes what is idle, and what is in use when its answer is there. The client can be used again."""
        idle, self._idle = self._idle, []
        while idle:
            with contextlib.suppress(IndexError):  # another thread took it
                idle.pop()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop_waiting(self, *, at_once: bool = False) -> None:
        """Every pop that waits, in whatever thread, answers soon with what has just arrived, usually nothing.

        For good: a later pop that would wait does not ask at all. The server is told by closing our half of the
        connection, so that an answer that is on its way is still read. What it hands out in the very moment
        in which it hears that may be lost: that job comes back after its TTR. at_once closes the other half
        too, for a server that does not listen.
        """
        self._hurry = True
        for connection in list(self._waiting):
            with contextlib.suppress(OSError, AttributeError):  # closed meanwhile
                # Not SSLSocket.shutdown: it would forget the keys that the answer is still to be read with.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR if at_once else socket.SHUT_WR)

    def _forget_connections(self) -> None:
        self._idle = []
        self._waiting = set()
        self._hurry = False
        self._pid = os.getpid()

    def _twin(self) -> "Client":
        """The same client with connections of its own."""
        twin = copy.copy(self)
        twin._forget_connections()
        return twin

    def _take(self, seconds: float, *, new: bool) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it has been used before."""
        if self._pid != os.getpid():
            self._forget_connections()  # a fork must not speak on its parent's
        while not new and self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if time.monotonic() - since < IDLE_SECONDS and not _closed_by_server(connection):
                return connection, True
            connection.close()
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise Unavailable(f"{self.url} cannot be reached: {error}", perhaps_done=False) from error
        return connection, False

    def _ask(self, command: dict[str, Any], *, wait: float = 0, timeout_seconds: float | None = None) -> dict[str, Any]:
        """The answer to a command. Repeats it as the class says."""
        harmless = command["command"] in REPEATED or command.get("on_conflict") == "keep"
        payload = json.dumps(command, allow_nan=False).encode()
        seconds = timeout_seconds or self.timeout_seconds
        new = False
        while True:
            connection, reused = self._take(seconds, new=new)
            try:
                return self._understand(*self._exchange(connection, payload, wait, seconds))
            except _Hurried:
                return {"value": None}
            except _Broken as broken:
                if not reused or (broken.perhaps_done and not harmless):
                    raise
                new = True

    def _exchange(
        self, connection: http.client.HTTPConnection, payload: bytes, wait: float, seconds: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        sent = kept = False
        idle = self._idle
        try:
            connection.sock.settimeout(wait + seconds)
            if wait:
                self._waiting.add(connection)
                if self._hurry:  # asked after the line above, or stop_waiting() might miss this one
                    raise _Hurried
            try:
                connection.request("POST", self._path, payload, self._headers)
                sent = True
            except BrokenPipeError:
                pass  # a server that refuses a large body answers before it has read it
            response = connection.getresponse()
            body = response.read()
            kept = sent and not response.will_close
            return response, body
        except (OSError, http.client.HTTPException) as error:
            if wait and self._hurry:
                raise _Hurried from None
            slow = isinstance(error, TimeoutError)
            what = f"did not answer within {wait + seconds:g} s" if slow else f"broke the connection off ({error!r})"
            done = "may have been done" if sent else "was not done"
            kind = Unavailable if slow else _Broken
            raise kind(f"{self.url} {what}; what was asked {done}.", perhaps_done=sent) from error
        finally:
            self._waiting.discard(connection)
            if kept and idle is self._idle:  # else the client was closed meanwhile
                idle.append((time.monotonic(), connection))
            else:
                connection.close()

    def _understand(self, response: http.client.HTTPResponse, body: bytes) -> dict[str, Any]:
        """What the server said, if it is a yes."""
        try:
            said = json.loads(body)
        except ValueError:
            said = None
        answer = said if isinstance(said, dict) else {}
        status = response.status
        reason = str(answer.get("error") or answer.get("detail") or f"{status} {response.reason}")
        if status in (401, 403):
            raise Unauthorized(f"{self.url} does not accept the token for this: {reason}", status)
        if status == 429:
            raise TooManyRequests(f"{self.url} is asked too often: {reason}", _retry_after(response) or 1.0)
        if status >= 500:
            after = _retry_after(response)
            raise Unavailable(f"{self.url} is out of order: {reason}", perhaps_done=True, retry_after_seconds=after)
        if "success" not in answer:
            other = response.headers.get("Location")
            hint = f"it points to {other}" if other else "a queue's address usually ends in /api/queue/"
            raise ClientError(f"{self.url} answers {status}, and not as a queue does: is it the right one? ({hint})")
        if not answer["success"]:
            raise Refused(reason, status, answer.get("value"))
        return answer


class _Broken(Unavailable):
    """The connection broke."""


class _Hurried(Exception):
    """Nobody wants to wait any more."""


def _closed_by_server(connection: http.client.HTTPConnection) -> bool:
    """Whether something can be read where nothing was asked: the end, or nothing that is ours."""
    if connection.sock is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _retry_after(response: http.client.HTTPResponse) -> float:
    """Seconds, an hour at most; 0 when the server said nothing that is a number."""
    try:
        return min(3600.0, max(0.0, float(response.headers.get("Retry-After", ""))))
    except ValueError:
        return 0.0


def _seconds(delay: Delay) -> float | int:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def _about(job: Job, command: str) -> dict[str, Any]:
    number = {} if job.number is None else {"job": job.number}
    return {"command": command, "topic": job.topic, "id": job.id, "attempt": job.attempt, **number}


def _readable(text: str) -> str:
    """The end of a text, without what the server does not take: a refused reason would be no reason to keep a job."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text[-ERROR_CHARACTERS:])


def _given(**fields: str) -> dict[str, Any]:
    """The fields that say something."""
    return {name: text for name, text in fields.items() if text}


def _rest_seconds(error: ClientError, tries: int, longest: float = LONGEST_REST_SECONDS) -> float:
    """How long to leave the server alone after `tries` failures: doubled, spread, never less than it asked for."""
    backoff = min(longest, FIRST_REST_SECONDS * 2 ** min(tries - 1, 16)) * random.uniform(0.5, 1)
    asked = getattr(error, "retry_after_seconds", 0) * random.uniform(1, 1.2)
    return asked if isinstance(error, TooManyRequests) else max(asked, backoff)


@dataclass(eq=False)
class _Held:
    """A job in hand. `expires` is when the lease is over at the latest, by this process's monotonic clock."""

    job: Job
    expires: float
    ending: bool = False  # the handler has returned
    done: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{self.job.topic} {self.job.id}, attempt {self.job.attempt}"


class Consumer:
    """Takes the jobs of a topic and calls `handle(job)` for each, in `threads` threads, until it is stopped. Runs once.

    handle            returns: finished. Returns Snooze(delay): asked again later, at no cost. Raises Retry or anything
                      else: failed; tried again after the topic's backoff, dead when its attempts are used up
    wait              seconds that one question may wait at the server for a job
    heartbeat         while a handler runs its job is touched, at a third of its TTR; when the lease is
                      lost all the same, job.lost is set and what the handler did is not finished
    longest_seconds   after this a handler counts as hanging: its job is touched no more, and taken back.
                      None: never. A hanging handler keeps its thread either way
    grace_seconds     how long run() waits for handlers when it is to stop
    name              kept with each job, for people; default: host and process
    install_signal_handlers   SIGTERM and SIGINT call stop() while run() is in the main thread. The second
                      one is not caught

    Never takes more jobs than it has free threads. Rests, longer each time, while the server is away.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        handle: Callable[[Job], Any],
        *,
        threads: int = 1,
        wait: float = 30,
        heartbeat: bool = True,
        longest_seconds: float | None = None,
        grace_seconds: float = 20,
        name: str = "",
        install_signal_handlers: bool = True,
    ) -> None:
        if threads < 1 or wait < 0:
            raise ValueError(f"A consumer needs threads >= 1 and wait >= 0; got {threads} and {wait}.")
        self._client, self._topic, self._handle = client, topic, handle
        self._threads, self._wait, self._heartbeat = threads, wait, heartbeat
        self._longest, self._grace = longest_seconds, grace_seconds
        self._name = name or f"{socket.gethostname()}-{os.getpid()}"[-100:]
        self._signals = install_signal_handlers
        self._polls = client._twin()
        self._free = threading.Semaphore(threads)
        self._held: set[_Held] = set()
        self._jobs: queue.SimpleQueue[_Held | None] = queue.SimpleQueue()
        # Of all that threading and queue offer, only its put() may be called by a signal handler.
        self._end: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Take no more jobs; run() returns when those in hand are done. From any thread or signal handler."""
        self._end.put(None)

    def run(self) -> int:
        """The number of jobs that were still in hand when the grace was over: 0 if all went well.

        Raises what makes going on useless: Unauthorized, Refused (there is no such topic), ClientError.
        """
        if self._stopping.is_set():
            raise RuntimeError("A Consumer runs once: make another one.")
        poller = threading.Thread(target=self._poll, name="delaytasks-poll", daemon=True)
        try:
            with self._caught_signals():  # before the first job: it may be the one that stops us
                for _ in range(self._threads):
                    threading.Thread(target=self._work, name="delaytasks-handler", daemon=True).start()
                poller.start()
                reason = self._reason_to_end()
        finally:
            self._stopping.set()
            self._polls.stop_waiting()
        left = self._wind_up(poller)
        if reason is not None:
            raise reason
        return left

    def _reason_to_end(self) -> BaseException | None:
        # A signal in the moment before get() begins to wait would not be heard by it, nor any on Windows.
        while True:
            with contextlib.suppress(queue.Empty):
                return self._end.get(timeout=SIGNAL_SECONDS)

    @contextlib.contextmanager
    def _caught_signals(self) -> Iterator[None]:
        before: dict[int, Any] = {}
        try:
            if self._signals and threading.current_thread() is threading.main_thread():
                for number in map(int, (signal.SIGTERM, signal.SIGINT)):
                    before[number] = signal.signal(number, lambda *_: self.stop())
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _wind_up(self, poller: threading.Thread) -> int:
        deadline = time.monotonic() + self._grace
        poller.join(min(PARTING_SECONDS, self._grace))
        self._polls.stop_waiting(at_once=True)
        for held in list(self._held):
            held.done.wait(max(0.0, deadline - time.monotonic()))
        poller.join(max(0.0, min(PARTING_SECONDS, deadline - time.monotonic())))  # it may be giving a job back
        self._polls.close()
        for _ in range(self._threads):
            self._jobs.put(None)
        left = [str(held) for held in list(self._held) if not held.done.is_set()]
        if left:
            logger.warning("Still in hand after %g s, their leases run out: %s", self._grace, "; ".join(left))
        return len(left)

    # Taking jobs

    def _poll(self) -> None:
        tries = 0
        try:
            while count := self._free_threads():
                started, jobs, rest = time.monotonic(), [], 0.0
                try:
                    jobs = self._polls.pop_many(self._topic, count, wait=self._wait, consumer=self._name)
                    tries = 0
                except (TooManyRequests, Unavailable) as error:
                    tries += 1
                    rest = _rest_seconds(error, tries)
                    logger.warning("%s: no jobs for now, next try in %.1f s. %s", self._topic, rest, error)
                finally:
                    for _ in range(count - len(jobs)):
                        self._free.release()
                for job in jobs:
                    self._hand_out(job)
                if not jobs:
                    self._stopping.wait(max(rest, started + EMPTY_SECONDS - time.monotonic()))
        except BaseException as error:
            self._end.put(error)

    def _free_threads(self) -> int:
        """How many jobs to ask for: waits until a thread is free. 0 when it is time to stop."""
        self._free.acquire()
        if self._stopping.is_set():
            self._free.release()
            return 0
        count = 1
        while count < TAKEN_AT_ONCE and self._free.acquire(blocking=False):
            count += 1
        return count

    def _hand_out(self, job: Job) -> None:
        held = _Held(job, expires=time.monotonic() + job.ttr)
        if not self._stopping.is_set():
            self._held.add(held)
            return self._jobs.put(held)
        try:
            self._client.release(job)
        except ClientError as error:
            logger.warning("%s arrived too late and could not be given back: %s", held, error)
        finally:
            self._free.release()

    # One job

    def _work(self) -> None:
        while (held := self._jobs.get()) is not None:
            try:
                if self._heartbeat:
                    threading.Thread(target=self._beat, args=(held,), name="delaytasks-heartbeat", daemon=True).start()
                self._run_handler(held)
            except BaseException:
                logger.exception("%s: its end could not be told; its lease runs out.", held)
            finally:
                held.done.set()
                self._held.discard(held)
                self._free.release()

    def _run_handler(self, held: _Held) -> None:
        job = held.job
        try:
            result = self._handle(job)
        except BaseException as error:  # SystemExit too: it would end this thread and nobody would notice
            logger.warning("%s failed: %r", held, error)
            delay = error.delay if isinstance(error, Retry) else None
            said = "".join(traceback.format_exception(error))
            self._tell(held, lambda: self._client.release(job, delay=delay, error=said))
        else:
            if isinstance(result, Snooze):
                self._tell(held, lambda: self._client.release(job, delay=result.delay))
            else:
                self._tell(held, lambda: self._client.finish(job))

    def _tell(self, held: _Held, word: Callable[[], Any]) -> None:
        """Say how it ended, again while the server is away, until the lease is over."""
        job, unsure = held.job, False
        held.ending = True
        for tries in itertools.count(1):
            try:
                word()
                return
            except (TooManyRequests, Unavailable) as error:
                unsure = unsure or getattr(error, "perhaps_done", False)
                rest = _rest_seconds(error, tries, longest=job.ttr / 3)
                if job.lost.is_set() or time.monotonic() + rest >= held.expires:
                    return self._lose(held, f"its end could not be told: {error}")
                logger.warning("%s: its end cannot be told for now, next try in %.1f s. %s", held, rest, error)
                job.lost.wait(rest)
            except Refused as refused:
                perhaps = " (perhaps because an earlier try, whose answer was lost, has told it)" if unsure else ""
                return self._lose(held, f"its end was refused: {refused}{perhaps}")
            except ClientError as error:
                self._end.put(error)
                return self._lose(held, f"its end could not be told: {error}")

    def _beat(self, held: _Held) -> None:
        """Touch it until it is done or lost. A thread for each job: none has to wait for another's answer."""
        job, every = held.job, held.job.ttr / 3
        until = time.monotonic() + (self._longest or float("inf"))
        rest, tries = every, 0
        while not held.done.wait(rest):
            started = time.monotonic()
            if started >= held.expires:
                return self._lose(held, "its lease is over")
            try:
                if started < until:
                    self._client.touch(job, timeout_seconds=min(self._client.timeout_seconds, every))
                    held.expires = started + job.ttr
                rest, tries = every, 0
            except Refused as refused:
                # While it is being finished: because it has been, or the finish is refused too and tells why.
                return None if held.ending else self._lose(held, str(refused))
            except (TooManyRequests, Unavailable) as error:
                tries += 1
                rest = _rest_seconds(error, tries, longest=every)
            except ClientError as error:
                self._end.put(error)
                until = started
            rest = min(rest, max(0.0, held.expires - time.monotonic()))

    def _lose(self, held: _Held, why: str) -> None:
        if not held.job.lost.is_set():
            logger.warning("%s: not ours any more, %s", held, why)
        held.job.lost.set()
