"""FastPath answers as Django does: valid and spoilt requests are sent to both, and the answers are compared."""

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from asgiref.current_thread_executor import CurrentThreadExecutor
from asgiref.sync import AsyncToSync
from django.core.handlers.asgi import ASGIHandler

from delaytasks.api.access import token_cache
from delaytasks.api.limits import live_jobs
from delaytasks.db.transitions import produced_by
from delaytasks.jobs import schedule
from delaytasks.models import Job
from delaytasks.worker import leases
from tests.support import asgi_client

pytestmark = pytest.mark.on_both
SEED, SPOILT = 11, 150
HEADERS = ("Allow", "Cache-Control", "Content-Language", "Content-Type", "Location", "Retry-After", "Www-Authenticate")
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|\+00:00)")
RECEIPT = re.compile(r"\b[0-9a-f]{32}\b")
Headers = list[tuple[str, str]]


class Request(NamedTuple):
    """A request. HELD and DELAYED in its path and body stand for the ids of two jobs.

    parts   the body, as the messages in which it arrives
    """

    path: str
    parts: tuple[bytes, ...]
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"
    scheme: str = "http"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    content: str
    left: list[tuple[Any, ...]]


def _post(path: str, data: Any, *headers: tuple[str, str]) -> Request:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return Request(f"/api/{path}", (body,), (("content-type", "application/json"), *headers))


NEW = {"topic": "mail.send", "key": "new", "delay_seconds": 60, "ttr_seconds": 30, "body": {"a": [1, 2.5, "ü", None]}}
ADD = {"command": "add", "topic": "mail.send", "id": "new", "delay": 60, "TTR": 30, "body": {"a": 1}}
ADD_KEPT = {**ADD, "id": "delayed", "on_conflict": "keep"}
FINISH = {"command": "finish", "id": "held", "topic": "mail.send", "attempt": 1}
DELETE = {"command": "delete", "id": "delayed", "topic": "mail.send", "reason": "changed"}
POP = {"command": "pop", "topic": "mail.send", "count": 2, "wait": 0, "consumer": "c"}
VALID = [
    _post("jobs/", NEW),
    _post("jobs/", {**NEW, "key": "delayed", "on_conflict": "reject"}),
    _post("jobs/", {**NEW, "key": "delayed", "on_conflict": "replace"}),
    _post("queue/", ADD),
    _post("queue/", ADD_KEPT),
    _post("queue/", FINISH),
    _post("queue/", DELETE),
    _post("queue/", POP),
    _post("jobs/HELD/finish/", {"attempt": 1}),
    _post("topics/mail.send/reserve/", {"count": 1, "wait_seconds": 0, "consumer": "c"}),
]
JSON = ("content-type", "application/json")
RAW = json.dumps(NEW).encode()
EDGES = {
    "no content type": Request("/api/jobs/", (RAW,)),
    "space in the media type": Request("/api/jobs/", (RAW,), (("content-type", "appli cation/json"),)),
    "charset": Request("/api/jobs/", (RAW,), (("content-type", "Application/JSON; charset=UTF-8"),)),
    "two media types": Request("/api/jobs/", (RAW,), (JSON, JSON)),
    "other charset": Request("/api/jobs/", (RAW,), (("content-type", "application/json; charset=utf-16"),)),
    "empty": Request("/api/jobs/", (b"",), (JSON,)),
    "chunks": Request("/api/jobs/", (RAW[:7], b"", RAW[7:9], RAW[9:]), (JSON,)),
    "compressed, as it says": Request("/api/jobs/", (RAW,), (JSON, ("content-encoding", "gzip"))),
    "byte order mark": _post("jobs/", b"\xef\xbb\xbf" + RAW),
    "UTF-16": _post("jobs/", RAW.decode().encode("utf-16")),
    "Latin-1": _post("jobs/", json.dumps(NEW, ensure_ascii=False).encode("latin-1")),
    "overlong UTF-8": _post("jobs/", RAW.replace(b"new", b"n\xc0\xafw")),
    "surrogate in UTF-8": _post("jobs/", RAW.replace(b"new", b"n\xed\xa0\x80w")),
    "NUL in the key": _post("jobs/", {**NEW, "key": "a\0b"}),
    "NUL in the body": _post("jobs/", {**NEW, "body": {"a": "\0"}}),
    "NUL in a name of the body": _post("queue/", {**ADD, "body": {"\0": 1}}),
    "lone surrogate in the key": _post("jobs/", {**NEW, "key": "\ud800"}),
    "lone surrogate in the body": _post("queue/", {**ADD, "body": ["\udfff\ud800"]}),
    "lone surrogate in an unknown field": _post("queue/", {**ADD, "\ud800": 1}),
    "pair of surrogates": _post("jobs/", RAW.replace(b'"new"', rb'"\ud83d\ude00"')),
    "id of another type": _post("queue/", {**ADD, "id": ["new"]}),
    "command of another type": _post("queue/", {**ADD, "command": ["add"]}),
    "no JSON object": _post("queue/", [ADD]),
    "huge number": _post("jobs/", RAW.replace(b"60", b"1" + b"0" * 5000)),
    "infinite number": _post("jobs/", RAW.replace(b"2.5", b"1e999")),
    "NaN": _post("jobs/", RAW.replace(b"2.5", b"NaN")),
    "negative zero": _post("jobs/", RAW.replace(b"2.5", b"-0.0")),
    "large integer": _post("jobs/", RAW.replace(b"2.5", b"1" + b"0" * 4000)),
    "float as attempt": _post("jobs/HELD/finish/", {"attempt": 1.0}),
    "bool as attempt": _post("jobs/HELD/finish/", {"attempt": True}),
    "deep": _post("jobs/", RAW.replace(b"2.5", b"[" * 200 + b"]" * 200)),
    "as deep as allowed": _post("jobs/", RAW.replace(b"2.5", b"[" * 90 + b"]" * 90)),
    "duplicate names": _post("jobs/", RAW[:-1] + b',"key":"other","topic":"elsewhere"}'),
    "separators of lines": _post("jobs/", {**NEW, "body": "\u2028\u2029\x7f\u0085"}),
    "body that is a string": _post("queue/", {**ADD, "body": "text"}),
    "body that is null": _post("queue/", {**ADD, "body": None}),
    "no body": _post("jobs/", {name: value for name, value in NEW.items() if name != "body"}),
    "secret in the body": _post("jobs/", {**NEW, "body": {"password": "x", "url": "https://a:b@c/"}}),
    "due at": _post("jobs/", {"topic": "mail.send", "key": "new", "due_at": "2031-05-01T09:30:60.9999+02:00"}),
    "due in the past": _post("jobs/", {"topic": "mail.send", "key": "new", "due_at": "0001-01-01T00:00:00+02:00"}),
    "milliseconds": _post("jobs/", {**NEW, "delay_seconds": 1.0004, "ttr_seconds": 1.0005}),
    "priority": _post("jobs/", {**NEW, "priority": 9}),
    "priority of an added job": _post("queue/", {**ADD, "priority": 3.0}),
    "priority out of range": _post("jobs/", {**NEW, "priority": 10}),
    "unknown topic": _post("queue/", {**POP, "topic": "mail.nothing"}),
    "forbidden topic": _post("queue/", {**POP, "topic": "sms.send"}),
    "unknown job": _post("jobs/99999999/finish/", {"attempt": 1}),
    "job 0": _post("jobs/0/finish/", {"attempt": 1}),
    "number with zeros": _post("jobs/000HELD/finish/", {"attempt": 1}),
    "job beyond bigint": _post("jobs/9999999999999999999/finish/", {"attempt": 1}),
    "job of many digits": _post("jobs/" + "9" * 400 + "/finish/", {"attempt": 1}),
    "delayed job": _post("jobs/DELAYED/finish/", {"attempt": 1}),
    "wrong receipt": _post("jobs/HELD/finish/", {"attempt": 1, "receipt": "0" * 32}),
    "receipt that is no ASCII": _post("jobs/HELD/finish/", {"attempt": 1, "receipt": "ü\U0001f600"}),
    "receipt that is null": _post("jobs/HELD/finish/", {"attempt": 1, "receipt": None}),
    "later attempt": _post("queue/", {**FINISH, "attempt": 2}),
    "job without attempt": _post("queue/", {"command": "finish", "id": "held", "job": 1}),
    "held job": _post("queue/", {**DELETE, "id": "held"}),
    "empty reason": _post("queue/", {**DELETE, "reason": ""}),
    "no slash": _post("jobs", NEW),
    "two slashes": _post("/jobs/", NEW),
    "dots": _post("topics/../jobs/", NEW),
    "line break after the address": _post("jobs/\n", NEW),
    "other digits": _post("jobs/\u0661/finish/", {"attempt": 1}),
    "query string": _post("jobs/?topic=%00&format=xml", NEW),
    "query string of a command": _post("queue/?wait=30", POP),
    "many parameters": _post("jobs/?" + "&".join(f"a{n}=1" for n in range(1500)), NEW),
    "method override": _post("jobs/", NEW, ("x-http-method-override", "DELETE")),
    "GET with a body": Request("/api/jobs/", (RAW,), (JSON,), "GET"),
    "PUT": Request("/api/jobs/", (RAW,), (JSON,), "PUT"),
    "post in lower case": Request("/api/jobs/", (RAW,), (JSON,), "post"),
    "host that is not allowed": _post("jobs/", NEW, ("host", "evil.example")),
    "two hosts": _post("jobs/", NEW, ("host", "localhost"), ("host", "localhost")),
    "host with a port": _post("jobs/", NEW, ("host", "LOCALHOST:8000")),
    "host with a broken port": _post("jobs/", NEW, ("host", "localhost:80x")),
    "host with a dot": _post("jobs/", NEW, ("host", "localhost.")),
    "empty host": _post("jobs/", NEW, ("host", "")),
    "length of many digits": _post("jobs/", NEW, ("content-length", "9" * 5000)),
    "length that is no number": _post("jobs/", NEW, ("content-length", "+5")),
    "lower case scheme": _post("jobs/", NEW, ("authorization", "bearer TOKEN")),
    "spaces around the token": _post("jobs/", NEW, ("authorization", "Bearer   TOKEN ")),
    "tab before the token": _post("jobs/", NEW, ("authorization", "Bearer\tTOKEN")),
    "no token": _post("jobs/", NEW, ("authorization", "Bearer")),
    "token that is no ASCII": _post("jobs/", NEW, ("authorization", "Bearer \xff.\xfe")),
    "token with a NUL": _post("jobs/", NEW, ("authorization", "Bearer abcdefgh.\0")),
    "long token": _post("jobs/", NEW, ("authorization", "Bearer " + "a.b" * 20_000)),
    "other scheme": _post("jobs/", NEW, ("authorization", "Basic TOKEN")),
    "cookie instead of a token": _post("jobs/", NEW, ("authorization", ""), ("cookie", "sessionid=x")),
    "Accept": _post("jobs/", NEW, ("accept", "text/html")),
    "language": _post("jobs/", {}, ("accept-language", "zh-hans")),
}  # fmt: skip


@pytest.fixture
def both(make_token: Callable[..., str], rest_topics: None) -> Callable[[Request], tuple[Answer, Answer]]:
    """both(request) returns the answers of Django alone and of FastPath, each with the same two jobs."""
    return _both_with(make_token(topics={"mail.*": "produce consume"}))


@pytest.fixture
def both_submitting(make_token: Callable[..., str], rest_topics: None) -> Callable[[Request], tuple[Answer, Answer]]:
    """As `both`, with a token that creates jobs and sees none."""
    return _both_with(make_token(topics={"mail.*": "submit"}))


@pytest.fixture
def both_full(
    make_token: Callable[..., str], rest_topics: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Request], tuple[Answer, Answer]]:
    """As `both`, with a token that has as many live jobs as it may have. The clock of Retry-After stands still."""
    monkeypatch.setattr(live_jobs, "now", lambda: 1000.0)
    token = make_token(topics={"mail.*": "produce consume"}, max_live_jobs=1)
    with produced_by(token[:8]):
        schedule.schedule("sms.send", "one", delay=600)
    return _both_with(token)


def _both_with(token: str) -> Callable[[Request], tuple[Answer, Answer]]:
    django = ASGIHandler()
    doors = django, asgi_client.fast_path(django)

    def ask(request: Request) -> tuple[Answer, Answer]:
        first, second = (_answer(door, request, token) for door in doors)
        return first, second

    return ask


def _answer(application: Any, request: Request, token: str) -> Answer:
    asgi_client.clear_caches()
    token_cache.answers.clear()
    Job.objects.exclude(topic="sms.send").delete()
    live_jobs.clear_cache()
    held = schedule.schedule("mail.send", "held", delay=0).pk
    [reserved] = leases.reserve("mail.send", 1, using="default", worker="php-shop")
    assert reserved.id == held
    schedule.schedule("mail.send", "ready", delay=0)
    delayed = schedule.schedule("mail.send", "delayed", delay=600).pk

    def filled(text: str) -> str:
        return text.replace("HELD", str(held)).replace("DELAYED", str(delayed)).replace("TOKEN", token)

    sent = request._replace(
        path=filled(request.path), headers=tuple((name, filled(value)) for name, value in request.headers)
    )
    status, headers, content = asgi_client.run(_send(application, sent, token))
    fields = ("topic", "key", "state", "attempt", "worker", "ttr_ms", "priority", "body")
    left = list(Job.objects.order_by("topic", "key").values_list(*fields))
    shown = {name: _neutral(headers[name]) for name in HEADERS if name in headers}
    return Answer(status, shown, _neutral(content), left)


def _neutral(text: str) -> str:
    """Replace what differs between two runs: times, receipts and the ids of jobs."""
    text = RECEIPT.sub("RECEIPT", TIME.sub("TIME", text))
    text = re.sub(r'(?<=")(id|job|job_id|late_ms)":([0-9]+)', r'\1":N', text)
    return re.sub(r"(jobs?[/ ])[0-9]{1,9}\b", r"\1N", text)


async def _send(application: Any, request: Request, token: str) -> tuple[int, dict[str, str], str]:
    given = {name for name, _ in request.headers}
    headers: Headers = list(request.headers)
    size = sum(map(len, request.parts))
    for name, value in (("host", "localhost"), ("authorization", f"Bearer {token}"), ("content-length", str(size))):
        if name not in given and (name != "content-length" or len(request.parts) == 1):
            headers.append((name, value))
    path, _, query = request.path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
        "scheme": request.scheme, "path": path, "raw_path": quote(path).encode(), "query_string": query.encode(),
        "root_path": "", "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 40_000), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    parts = list(request.parts)
    answered: list[Any] = []

    async def receive() -> Any:
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        answered.append(message)

    await application(scope, receive, send)
    received = {name.decode().title(): value.decode("latin-1") for name, value in answered[0]["headers"]}
    content = b"".join(part.get("body", b"") for part in answered[1:])
    return answered[0]["status"], received, content.decode()


@pytest.mark.parametrize(
    "request_", [each for each in VALID if b"delayed" not in each.parts[0]], ids=lambda each: each.path
)
def test_valid_request_is_served_without_django(request_: Request, make_token: Any, rest_topics: None) -> None:
    """Otherwise this module would compare Django with itself."""

    async def django(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(scope)

    assert _answer(
        asgi_client.fast_path(django), request_, make_token(topics={"mail.*": "produce consume"})
    ).status in (200, 201)


def _assert_alike(request: Request, answers: tuple[Answer, Answer]) -> None:
    by_django, by_fast_path = answers
    assert by_fast_path == by_django, request
    assert by_django.status < 500, (request, by_django)


@pytest.mark.parametrize("name", EDGES)
def test_edge_is_answered_alike(name: str, both: Any) -> None:
    _assert_alike(EDGES[name], both(EDGES[name]))


def test_request_does_not_depend_on_the_context_of_the_test(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted call may leave a thread in it that serves no synchronous parts: they would wait forever."""
    monkeypatch.setattr(AsyncToSync.executors, "current", CurrentThreadExecutor(None), raising=False)
    _assert_alike(VALID[0], both(VALID[0]))


def _spoilt(seed: int, count: int) -> Iterator[Request]:
    """Yield valid requests, and requests of which a field or some bytes are others."""
    yield from VALID
    chance = random.Random(seed)
    others = [
        None, True, -1, 0, 1, 1.0, 0.5, 2**31, 2**63, 1e308, [], {}, [[]], "", " ", "x", "new", "held", "delayed",
        "a\0", "\ud800", "x" * 256, "é", "\u2028", "mail.send", "mail.print", "sms.send", "keep", "replace", "reject",
        "add", "1", "2031-05-01T09:30:00Z", {"a": {"b": []}}, "\u200b", "\u202e", "mail.send\n",
    ]  # fmt: skip
    names = ["topic", "key", "id", "delay", "TTR", "body", "on_conflict", "attempt", "job", "receipt", "reason",
             "due_at", "delay_seconds", "count", "wait", "consumer", "error", "jobs", "unknown", "command"]  # fmt: skip
    for _ in range(count):
        request = chance.choice(VALID)
        data = json.loads(request.parts[0])
        for _ in range(chance.randint(1, 2)):
            name = chance.choice([*data, *data, chance.choice(names)])
            if chance.random() < 0.2:
                data.pop(name, None)
            elif name not in ("wait", "wait_seconds"):
                data[name] = chance.choice(others)
        body = bytearray(json.dumps(data, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass"))
        if chance.random() < 0.3:
            place = chance.randrange(len(body))
            body[place : place + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 2))
        cut = chance.randrange(len(body) + 1)
        parts = (bytes(body),) if chance.random() < 0.7 else (bytes(body[:cut]), bytes(body[cut:]))
        yield request._replace(parts=parts)


def test_spoilt_requests_are_answered_alike(both: Any) -> None:
    for request in _spoilt(SEED, SPOILT):
        _assert_alike(request, both(request))


def test_requests_of_a_submitter_are_answered_alike(both_submitting: Any) -> None:
    for request in _spoilt(SEED + 1, SPOILT // 5):
        _assert_alike(request, both_submitting(request))


def test_requests_above_the_limit_of_live_jobs_are_answered_alike(both_full: Any) -> None:
    for request in _spoilt(SEED + 2, SPOILT // 5):
        _assert_alike(request, both_full(request))
    assert both_full(VALID[0])[0].status == both_full(VALID[3])[1].status == 429
