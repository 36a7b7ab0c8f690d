"""Client for the HTTP queue. Needs only Python 3.11 or later; this file can be copied on its own.

    client = Client("https://tasks.example.com/api/queue/", token)
    client.add("order.close", "order:1042", delay=1800, ttr=60, body={"order": 1042})

    Consumer(client, "order.close", close_order, threads=4).run()       # until SIGTERM

A job may be delivered twice (its consumer was killed, or exceeded the TTR), so handlers have to be
idempotent. `Job.attempt` is the fencing token: the server refuses commands of earlier attempts.
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
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
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

# Commands that are safe to repeat: the second answer is as valid as the first. (If the answer of a pop is lost, its
# job is reserved until the TTR is over, which costs an attempt.)
REPEATABLE = ("pop", "touch", "peek")
IDLE_SECONDS = 30  # an older idle connection is not reused: a firewall or proxy may have dropped it
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 30.0  # delays while the server is unavailable
MIN_POLL_SECONDS = 1.0  # between polls of an empty queue, even if a proxy cuts the wait short
POLL_STOP_SECONDS = 2.0  # how long a cancelled poll may take to end
SIGNAL_SECONDS = 0.5  # the longest delay until a signal takes effect
MAX_POP = 50
LAST_TRY_SECONDS = 0.5  # before the end of a lease, its touch or the outcome of the job is sent a last time
ERROR_CHARACTERS = 4_000  # of a traceback: its end says what happened
NEVER_RAN = (Coroutine, Generator, AsyncGenerator)  # types of results that mean: the handler's body has not run


class ClientError(Exception):
    """Base class: the command was not carried out, or its answer was lost."""


class Refused(ClientError):
    """The server refused the command; nothing was changed.

    error    the reason
    status   200: the state of the job does not allow it. 400, 413: the command is invalid; do not repeat it
    value    the `value` of the answer
    """

    def __init__(self, error: str, status: int = 200, value: Any = None) -> None:
        super().__init__(error)
        self.error, self.status, self.value = error, status, value


class Unauthorized(ClientError):
    """The token is unknown, expired or revoked (status 401), or lacks the permission (403)."""

    def __init__(self, error: str, status: int = 401) -> None:
        super().__init__(error)
        self.status = status


class TooManyRequests(ClientError):
    """The token's rate limit is reached; nothing was done. Try again after `retry_after_seconds`."""

    def __init__(self, error: str, retry_after_seconds: float) -> None:
        super().__init__(error)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(ClientError):
    """No answer, or a 5xx status: the network, a proxy or the server is down.

    perhaps_done          True: the command was sent and may have been carried out. False: it was not sent
    retry_after_seconds   the server's Retry-After, at most an hour; 0 if it sent none, or a date
    """

    def __init__(self, error: str, *, perhaps_done: bool, retry_after_seconds: float = 0) -> None:
        super().__init__(error)
        self.perhaps_done, self.retry_after_seconds = perhaps_done, retry_after_seconds


@dataclass(frozen=True)
class Job:
    """A job leased to this process until `deadline`; touch() extends the lease.

    id                 the job's key, unique among live jobs
    attempt            the fencing token, sent with every command about the job
    ttr                seconds from each touch to the end of the lease
    due_at, deadline   aware, by the server's clock
    lost               set by a Consumer when the lease is lost: another consumer may have the job, so stop
    number             distinguishes the job from a later one with the same id, whose attempts start at 1 again;
                       None if the server did not send it
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
    """The result of a Consumer's handler that is not done yet: the job runs again after `delay`.

    delay   timedelta or seconds

    A snooze does not use up an attempt. Raises ValueError for a wrong delay.
    """

    delay: Delay

    def __post_init__(self) -> None:
        _check_delay(self.delay)


class Retry(Exception):
    """The exception with which a Consumer's handler fails the attempt and chooses the delay of the next one.

    delay   timedelta or seconds; None: the topic's backoff

    Raises ValueError for a wrong delay.
    """

    def __init__(self, reason: str = "", *, delay: Delay | None = None) -> None:
        super().__init__(reason)
        if delay is not None:
            _check_delay(delay)
        self.delay = delay


class Client:
    """The commands of one queue. Thread-safe; idle connections are reused.

    url               the URL of the queue, usually https://.../api/queue/
    timeout_seconds   for connecting and for each answer; the wait of a pop is added to it
    ssl_context       for https; the default verifies certificates with the system's CA certificates

    Proxy settings of the environment and redirects are ignored: the token is sent only to `url`.

    A connection that the server closed while idle is detected before it is used. If a reused
    connection breaks during a command that was not sent completely, the command is sent once more
    over a new one. A command that was sent and got no answer is repeated once if that is harmless:
    peek, touch, pop (a job taken by the first pop comes back after its TTR), and add with
    on_conflict="keep". Other commands are not repeated, because the second answer could be wrong: an
    add could be refused because of its own first try, a finish because the job has been finished.
    They raise Unavailable with perhaps_done=True, and the caller decides. Nothing is repeated after a
    timeout, or if the connection that broke was a new one.

    Every command raises Refused, Unauthorized, TooManyRequests or Unavailable, all subclasses of ClientError.
    """

    _idle: list[tuple[float, http.client.HTTPConnection]]
    _waiting: set[http.client.HTTPConnection]

    def __init__(
        self, url: str, token: str, *, timeout_seconds: float = 10, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query:
            raise ValueError(f"The URL of a queue looks like https://tasks.example.com/api/queue/, not like {url!r}.")
        if not (token and token.isascii() and token.isprintable() and " " not in token):
            raise ValueError("The token is empty or contains an invalid character. Does it end with a line end?")
        self.url, self.timeout_seconds = url, timeout_seconds
        # Without a port, http.client would take the last part of an IPv6 address for one.
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path or "/"
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
        self, topic: str, id: str, *, delay: Delay, ttr: Delay, body: Any = None, on_conflict: str = "reject",
        expires: Delay | None = None, priority: int = 0,
    ) -> str:  # fmt: skip
        """Add a job that is due after `delay`. Return "created", "kept", "replaced" or "again".

        id            the job's key, unique among live jobs, for example "order:1042"
        delay, ttr    timedelta or seconds
        on_conflict   if a live job has this id: "reject" raises Refused, "keep" keeps it, "replace" replaces it,
                      "again" keeps it if it waits, and lets it run once more if it is running
        expires       timedelta or seconds after its due time in which the job may begin; later it is skipped. None: as
                      the topic's handler says
        priority      0 to 9; a due job of a higher priority is handed out first

        After Unavailable with perhaps_done=True, repeat the add with on_conflict="keep" to make sure that
        the job exists. With "keep" the client itself repeats the add after a broken connection.
        """
        command = {"command": "add", "topic": topic, "id": id, "delay": _seconds(delay), "TTR": _seconds(ttr)}
        optional = {} if expires is None else {"expires": _seconds(expires)}
        optional |= {"priority": priority} if priority else {}
        return str(self._send(command | {"body": body, "on_conflict": on_conflict} | optional)["result"])

    def pop(self, topic: str, *, wait: float = 0, consumer: str = "") -> Job | None:
        """Reserve the first due job, by priority and age. Return None if none is due within `wait` seconds."""
        return next(iter(self.pop_many(topic, 1, wait=wait, consumer=consumer)), None)

    def pop_many(self, topic: str, count: int, *, wait: float = 0, consumer: str = "") -> list[Job]:
        """Reserve and return up to `count` due jobs; [] if none is due within `wait` seconds.

        Returns as soon as one job is due: it does not wait for `count` jobs.

        consumer   a name of this process, stored with the job and shown to staff
        """
        command = {"command": "pop", "topic": topic, "count": count, "wait": wait, "consumer": consumer}
        answer = self._send(command, wait=wait)
        return [
            Job(
                job["id"], topic, job["attempt"], job["body"], job["TTR"],
                datetime.fromisoformat(job["due_at"]), datetime.fromisoformat(job["deadline"]), number=job.get("job"),
            )
            for job in answer["value"] or ()
        ]  # fmt: skip

    def finish(self, job: Job) -> None:
        """Finish the job. Raises Refused if the lease is lost: another consumer has the job or will get it."""
        self._send(_job_command(job, "finish"))

    def touch(self, job: Job, *, timeout_seconds: float | None = None) -> datetime:
        """Extend the lease to a whole TTR from now; return the new deadline. Raises Refused if the lease is lost.

        timeout_seconds   for this command; None: the client's
        """
        answer = self._send(_job_command(job, "touch"), timeout_seconds=timeout_seconds)
        return datetime.fromisoformat(answer["value"])

    def release(self, job: Job, *, delay: Delay | None = None, error: str = "") -> str:
        """Give the job back. Return "delayed", or "dead" if its attempts are used up.

        delay   timedelta or seconds until it is due again; None: at once, or after the topic's backoff if
                `error` is given
        error   why the attempt failed; the last 4,000 characters are stored. "": the attempt did not fail, and
                none is used up

        Raises Refused if the lease is lost.
        """
        delay_field = {} if delay is None else {"delay": _seconds(delay)}
        return str(
            self._send(_job_command(job, "release") | delay_field | _non_empty(error=_printable_end(error)))["value"]
        )

    def bury(self, job: Job, reason: str = "") -> None:
        """Make the job dead at once; staff can retry it. Raises Refused if the lease is lost."""
        self._send(_job_command(job, "bury") | _non_empty(reason=_printable_end(reason)))

    def delete(self, id: str, *, topic: str = "") -> str:
        """Cancel a job. Return "cancelled", "running" (its handler goes on), "already finished" or "unknown".

        topic   needed only if jobs of several topics have this id
        """
        try:
            return str(self._send({"command": "delete", "id": id} | _non_empty(topic=topic))["value"])
        except Refused as refused:
            if not isinstance(refused.value, str):
                raise
            return refused.value

    def peek(self, id: str = "", *, topic: str = "") -> dict[str, Any] | None:
        """Return the job with this id, or the waiting job of the topic that is due first; None if the topic has none.

        pop() may return another job than the one due first, with a higher priority. Changes nothing.

        Keys of the dict: id, topic, state, due_at, attempt, failures, TTR (seconds), body, created_at, deadline,
        ended_at and error. Times are RFC 3339 texts or None.

        Raises Refused if no job has the id, if live jobs of several topics have it, or if neither argument is given.
        """
        job: dict[str, Any] | None = self._send({"command": "peek"} | _non_empty(id=id, topic=topic))["value"]
        return job

    # Connections

    def close(self) -> None:
        """Close idle connections now, and busy ones after their answer. The client can be used again."""
        idle, self._idle = self._idle, []
        while idle:
            with contextlib.suppress(IndexError):  # another thread took the last connection
                idle.pop()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop_waiting(self, *, at_once: bool = False) -> None:
        """End all waiting pops, in any thread. They return a job that has just arrived, usually none.

        From then on a pop with a wait returns at once without a request. Only the sending half of a
        connection is closed, so that an answer already on its way is still read. A job that the server
        hands out at that very moment may be lost until its TTR is over.

        at_once   close the receiving half too, for a server that does not react
        """
        self._waiting_ended = True
        for connection in list(self._waiting):
            with contextlib.suppress(OSError, TypeError):  # already closed: its socket is None
                # Not SSLSocket.shutdown: it drops the keys, and the answer could no longer be decrypted.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR if at_once else socket.SHUT_WR)

    def _forget_connections(self) -> None:
        self._idle = []
        self._waiting = set()
        self._waiting_ended = False
        self._pid = os.getpid()

    def _duplicate(self) -> "Client":
        """Return a copy with connections of its own."""
        duplicate = copy.copy(self)
        duplicate._forget_connections()
        return duplicate

    def _get_connection(self, seconds: float, *, new: bool) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it has been used before."""
        if self._pid != os.getpid():
            self._forget_connections()  # a forked process must not use its parent's connections
        while not new and self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:  # another thread took the last connection
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

    def _send(
        self, command: dict[str, Any], *, wait: float = 0, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Send a command and return the answer. The docstring of Client says when a command is repeated."""
        repeatable = command["command"] in REPEATABLE or command.get("on_conflict") == "keep"
        payload = json.dumps(command, allow_nan=False).encode()
        seconds = timeout_seconds or self.timeout_seconds
        new = False
        while True:
            connection, reused = self._get_connection(seconds, new=new)
            try:
                return self._parse(*self._exchange(connection, payload, wait, seconds))
            except _WaitingEnded:
                return {"value": None}
            except _Broken as broken:
                if not reused or (broken.perhaps_done and not repeatable):
                    raise
                new = True

    def _exchange(
        self, connection: http.client.HTTPConnection, payload: bytes, wait: float, seconds: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        sent = keep_alive = False
        idle = self._idle
        try:
            connection.sock.settimeout(wait + seconds)
            if wait:
                self._waiting.add(connection)
                if self._waiting_ended:  # tested after add(), as stop_waiting() might miss this connection
                    raise _WaitingEnded
            try:
                connection.request("POST", self._path, payload, self._headers)
                sent = True
            except (BrokenPipeError, ConnectionResetError):
                pass  # the server refused a large body before reading all of it; its answer can be read
            response = connection.getresponse()
            body = response.read()
            keep_alive = sent and not response.will_close
            return response, body
        except (OSError, http.client.HTTPException) as error:
            if wait and self._waiting_ended:
                raise _WaitingEnded from None
            timed_out = isinstance(error, TimeoutError)
            problem = (
                f"did not answer within {wait + seconds:g} s" if timed_out else f"broke the connection ({error!r})"
            )
            outcome = "may have been done" if sent else "was not done"
            error_class = Unavailable if timed_out else _Broken
            raise error_class(f"{self.url} {problem}; the command {outcome}.", perhaps_done=sent) from error
        finally:
            self._waiting.discard(connection)
            if keep_alive and idle is self._idle:  # otherwise the client was closed meanwhile
                idle.append((time.monotonic(), connection))
            else:
                connection.close()

    def _parse(self, response: http.client.HTTPResponse, body: bytes) -> dict[str, Any]:
        """Return the answer if the command succeeded. Raises the error for any other answer."""
        try:
            data = json.loads(body)
        except ValueError:
            data = None
        answer = data if isinstance(data, dict) else {}
        status = response.status
        reason = str(answer.get("error") or answer.get("detail") or f"{status} {response.reason}")
        if status in (401, 403):
            raise Unauthorized(f"{self.url} does not accept the token for this command: {reason}", status)
        if status == 429:
            raise TooManyRequests(f"Too many requests to {self.url}: {reason}", _retry_after(response) or 1.0)
        if status >= 500:
            after = _retry_after(response)
            raise Unavailable(f"{self.url} is unavailable: {reason}", perhaps_done=True, retry_after_seconds=after)
        if status == 413:  # perhaps of a proxy or of BodyLimit, without the field success
            raise Refused(reason, status, answer.get("value"))
        if "success" not in answer:
            other = response.headers.get("Location")
            hint = f"It redirects to {other}." if other else "The URL of a queue usually ends in /api/queue/."
            raise ClientError(f"{self.url} is not a queue: it answers {status} without the field success. {hint}")
        if not answer["success"]:
            raise Refused(reason, status, answer.get("value"))
        return answer


class _Broken(Unavailable):
    """The connection broke, so the command may be repeated on a new one."""


class _WaitingEnded(Exception):
    """stop_waiting() was called."""


def _closed_by_server(connection: http.client.HTTPConnection) -> bool:
    """Return whether an idle connection cannot be reused: the server closed it or sent data without a request."""
    if connection.sock is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _retry_after(response: http.client.HTTPResponse) -> float:
    """Return the seconds of the Retry-After header, at most an hour; 0 if it is missing or not a number."""
    try:
        return min(3600.0, max(0.0, float(response.headers.get("Retry-After", ""))))
    except ValueError:
        return 0.0


def _check_delay(delay: Delay) -> None:
    seconds = _seconds(delay)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise ValueError(f"delay is {delay!r:.80}: give a timedelta or a number of seconds, 0 or more.")


def _seconds(delay: Delay) -> float | int:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def _job_command(job: Job, command: str) -> dict[str, Any]:
    number = {} if job.number is None else {"job": job.number}
    return {"command": command, "topic": job.topic, "id": job.id, "attempt": job.attempt, **number}


def _printable_end(text: str) -> str:
    """Return the end of a text without control characters, which the server would refuse."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text[-ERROR_CHARACTERS:])


def _non_empty(**fields: str) -> dict[str, Any]:
    return {name: text for name, text in fields.items() if text}


def _retry_seconds(error: ClientError, tries: int, longest: float = LONGEST_RETRY_SECONDS) -> float:
    """Return the delay before the next try: exponential with jitter, and at least the server's Retry-After."""
    backoff = min(longest, FIRST_RETRY_SECONDS * 2 ** min(tries - 1, 16)) * random.uniform(0.5, 1)
    retry_after = getattr(error, "retry_after_seconds", 0) * random.uniform(1, 1.2)
    return retry_after if isinstance(error, TooManyRequests) else max(retry_after, backoff)


@dataclass(eq=False)
class _HeldJob:
    """A job whose lease this process holds. `expires` is the end of the lease by time.monotonic()."""

    job: Job
    expires: float
    ending: bool = False  # the handler has returned
    done: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{self.job.topic} {self.job.id}, attempt {self.job.attempt}"


class Consumer:
    """Reserves the jobs of a topic and calls `handle(job)` for each, in `threads` threads, until stopped.

    handle            a function without async. Returns None: the job is finished. Returns Snooze(delay): the job runs
                      again later, and no attempt is used up. Raises: the attempt failed; the job is retried after the
                      topic's backoff or the delay of Retry, and dead when its attempts are used up
    wait              seconds that one request may wait at the server for a job
    heartbeat         touch the job at a third of its TTR while its handler runs. If the lease is lost all
                      the same, job.lost is set and the job is not finished
    longest_seconds   after this a handler counts as hanging: its job is no longer touched, so that the
                      lease ends. None: never. A hanging handler keeps its thread either way
    grace_seconds     how long run() waits for running handlers after a stop
    name              stored with each job and shown to staff; default: host and process
    install_signal_handlers   SIGTERM and SIGINT call stop() if run() is in the main thread. A second
                      signal is not caught

    Can run only once. Never reserves more jobs than it has free threads. Makes longer and longer pauses
    between its requests while the server is unavailable.
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
        self._polls = client._duplicate()
        self._free = threading.Semaphore(threads)
        self._held: set[_HeldJob] = set()
        self._jobs: queue.SimpleQueue[_HeldJob | None] = queue.SimpleQueue()
        # Signal handlers put into this queue: SimpleQueue.put() is reentrant, locks and events are not.
        self._end: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Reserve no more jobs; run() returns when the running ones are done. For any thread or signal handler."""
        self._end.put(None)

    def run(self) -> int:
        """Run until stopped. Return the number of jobs still running after the grace time; 0 if all are done.

        Raises errors that a retry cannot cure: Unauthorized, Refused (unknown topic), ClientError.
        """
        if self._stopping.is_set():
            raise RuntimeError("A Consumer runs once: create another one.")
        poller = threading.Thread(target=self._poll, name="delaytasks-poll", daemon=True)
        try:
            with self._caught_signals():  # before the first job, whose handler may send a signal
                for _ in range(self._threads):
                    threading.Thread(target=self._work, name="delaytasks-handler", daemon=True).start()
                poller.start()
                error = self._wait_for_end()
        finally:
            self._stopping.set()
            self._polls.stop_waiting()
        unfinished = self._shut_down(poller)
        if error is not None:
            raise error
        return unfinished

    def _wait_for_end(self) -> BaseException | None:
        """Wait for stop() or an error; return the error or None."""
        # With a timeout: otherwise get() misses a signal that comes just before it blocks, and on Windows every signal.
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

    def _shut_down(self, poller: threading.Thread) -> int:
        deadline = time.monotonic() + self._grace
        poller.join(min(POLL_STOP_SECONDS, self._grace))
        self._polls.stop_waiting(at_once=True)
        for held in list(self._held):
            held.done.wait(max(0.0, deadline - time.monotonic()))
        poller.join(max(0.0, min(POLL_STOP_SECONDS, deadline - time.monotonic())))  # it may be releasing a job
        self._polls.close()
        for _ in range(self._threads):
            self._jobs.put(None)
        unfinished = [str(held) for held in list(self._held) if not held.done.is_set()]
        if unfinished:
            logger.warning(
                "Jobs still running after %g s; their leases will end: %s", self._grace, "; ".join(unfinished)
            )
        return len(unfinished)

    # Reserving jobs

    def _poll(self) -> None:
        tries = 0
        try:
            while count := self._free_threads():
                started, jobs, delay = time.monotonic(), [], 0.0
                try:
                    jobs = self._polls.pop_many(self._topic, count, wait=self._wait, consumer=self._name)
                    tries = 0
                except (TooManyRequests, Unavailable) as error:
                    tries += 1
                    delay = _retry_seconds(error, tries)
                    logger.warning("%s: no jobs reserved, next try in %.1f s. %s", self._topic, delay, error)
                finally:
                    for _ in range(count - len(jobs)):
                        self._free.release()
                for job in jobs:
                    self._dispatch(job)
                if not jobs:
                    self._stopping.wait(max(delay, started + MIN_POLL_SECONDS - time.monotonic()))
        except BaseException as error:
            self._end.put(error)

    def _free_threads(self) -> int:
        """Wait for a free thread; return how many are free, or 0 after a stop."""
        self._free.acquire()
        if self._stopping.is_set():
            self._free.release()
            return 0
        count = 1
        while count < MAX_POP and self._free.acquire(blocking=False):
            count += 1
        return count

    def _dispatch(self, job: Job) -> None:
        held = _HeldJob(job, expires=time.monotonic() + job.ttr)
        if not self._stopping.is_set():
            self._held.add(held)
            return self._jobs.put(held)
        try:
            self._client.release(job)
        except ClientError as error:
            logger.warning("%s arrived after the stop and could not be released: %s", held, error)
        finally:
            self._free.release()

    # One job

    def _work(self) -> None:
        while (held := self._jobs.get()) is not None:
            try:
                if self._heartbeat:
                    threading.Thread(
                        target=self._renew_lease, args=(held,), name="delaytasks-heartbeat", daemon=True
                    ).start()
                self._run_handler(held)
            except BaseException:
                logger.exception("%s: its outcome could not be reported; its lease will end.", held)
            finally:
                held.done.set()
                self._held.discard(held)
                self._free.release()

    def _run_handler(self, held: _HeldJob) -> None:
        job = held.job
        try:
            result = self._handle(job)
            if isinstance(result, Exception):
                raise result
            if isinstance(result, NEVER_RAN):
                raise TypeError(
                    f"The handler returned a {type(result).__name__}, so its body has not run. "
                    "Make it a function without async and yield."
                )
        except BaseException as error:  # SystemExit too: it would silently end this thread
            logger.warning("%s failed: %r", held, error)
            delay = error.delay if isinstance(error, Retry) else None
            text = "".join(traceback.format_exception(error))
            self._report(held, lambda: self._client.release(job, delay=delay, error=text))
        else:
            if isinstance(result, Snooze):
                self._report(held, lambda: self._client.release(job, delay=result.delay))
            else:
                if result is not None:
                    logger.warning("%s: the handler returned %.80r, no Snooze of this module: finished.", held, result)
                self._report(held, lambda: self._client.finish(job))

    def _report(self, held: _HeldJob, send: Callable[[], Any]) -> None:
        """Report the outcome; retry while the server is unavailable, for one TTR or until the lease ends."""
        job, perhaps_done = held.job, False
        held.ending = True
        until = time.monotonic() + job.ttr  # not held.expires alone: touches still extend the lease
        for tries in itertools.count(1):
            try:
                send()
                return
            except (TooManyRequests, Unavailable) as error:
                perhaps_done = perhaps_done or getattr(error, "perhaps_done", False)
                left, margin = min(held.expires, until) - time.monotonic(), min(LAST_TRY_SECONDS, job.ttr / 10)
                if job.lost.is_set() or left <= margin:
                    return self._mark_lost(held, f"its outcome could not be reported: {error}")
                delay = min(_retry_seconds(error, tries, longest=job.ttr / 3), left - margin)
                logger.warning("%s: its outcome could not be reported, next try in %.1f s. %s", held, delay, error)
                job.lost.wait(delay)
            except Refused as refused:
                hint = " (an earlier try, whose answer was lost, may have succeeded)" if perhaps_done else ""
                return self._mark_lost(held, f"its outcome was refused: {refused}{hint}")
            except ClientError as error:
                self._end.put(error)
                return self._mark_lost(held, f"its outcome could not be reported: {error}")

    def _renew_lease(self, held: _HeldJob) -> None:
        """Touch the job until it is done or lost. One thread per job, so that no touch waits for another's answer."""
        job, interval = held.job, held.job.ttr / 3
        touch_until = time.monotonic() + (self._longest or float("inf"))
        delay, tries = interval, 0
        while not held.done.wait(delay):
            started = time.monotonic()
            if started >= held.expires:
                return self._mark_lost(held, "its lease has ended")
            try:
                if started < touch_until:
                    self._client.touch(job, timeout_seconds=min(self._client.timeout_seconds, interval))
                    held.expires = started + job.ttr
                delay, tries = interval, 0
            except Refused as refused:
                # If the outcome is being reported, that command succeeds, or its answer has the reason.
                return None if held.ending else self._mark_lost(held, str(refused))
            except (TooManyRequests, Unavailable) as error:
                tries += 1
                delay = _retry_seconds(error, tries, longest=interval)
            except ClientError as error:
                self._end.put(error)
                touch_until = started
            left, margin = held.expires - time.monotonic(), min(LAST_TRY_SECONDS, job.ttr / 10)
            delay = min(delay, left - margin if left > margin else max(0.0, left))

    def _mark_lost(self, held: _HeldJob, reason: str) -> None:
        if not held.job.lost.is_set():
            logger.warning("%s: lease lost, %s", held, reason)
        held.job.lost.set()
