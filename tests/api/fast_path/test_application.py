"""FastPath beside Django: what it leaves to Django, and clients that go away."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, markcoroutinefunction
from django.core.handlers.asgi import ASGIHandler
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.db.backends.signals import connection_created
from django.http import HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from delaytasks.api import notifier
from delaytasks.api.access import permissions, throttling
from delaytasks.api.batching.batchers import FallBack
from delaytasks.api.fast_path import application, callers, clients, endpoints
from delaytasks.api.fast_path.application import FastPath
from delaytasks.api.models import Token
from delaytasks.db import groups
from delaytasks.jobs import schedule
from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from delaytasks.worker import leases
from tests.support import asgi_client
from tests.support.servers import wait_until

ADD = {"command": "add", "topic": "mail.send", "id": "k", "delay": 60, "TTR": 60, "body": {}}
POP = {"command": "pop", "topic": "mail.send"}


@pytest.fixture
def headers(make_token: Callable[..., str], rest_topics: None) -> dict[str, str]:
    asgi_client.clear_caches()
    return {"Authorization": f"Bearer {make_token(topics={'*': 'produce consume'})}"}


def send(headers: dict[str, str], data: Any, **more: Any) -> Any:
    """POST to the queue protocol on a new event loop in this thread."""
    request = asgi_client.arequest
    return async_to_sync(request)("POST", "/api/queue/", json.dumps(data).encode(), "application/json", headers, **more)


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups of adds."""
    sizes: list[int] = []
    add_each = groups.add_each
    monkeypatch.setattr(
        groups, "add_each", lambda using, rows, *args: (sizes.append(len(rows)), add_each(using, rows, *args))[1]
    )
    return sizes


def test_add_is_served_in_a_group(headers: dict[str, str], grouped: list[int]) -> None:
    assert send(headers, ADD).json()["result"] == "created"
    assert grouped == [1]


def test_a_popped_job_is_added_again_in_a_group(headers: dict[str, str], grouped: list[int]) -> None:
    send(headers, ADD | {"delay": 0})
    send(headers, {"command": "pop", "topic": ADD["topic"]})
    answer = send(headers, ADD | {"on_conflict": "again"}).json()
    assert (answer["success"], answer["result"], grouped) == (True, "again", [1, 1])


def test_nothing_is_grouped_inside_the_transaction_of_a_test(headers: dict[str, str], grouped: list[int]) -> None:
    """Another connection would not see what the test has written. Django's own handler uses that of the test."""
    passed_on: list[str] = []

    async def django(scope: Any, receive: Any, send: Any) -> None:
        passed_on.append(scope["path"])

    with transaction.atomic():
        send(headers, ADD, application=asgi_client.fast_path(django))
    assert passed_on == ["/api/queue/"]
    assert grouped == []
    assert send(headers, ADD, application=asgi_client.fast_path(django)).status_code == 200
    assert grouped == [1]


def test_host_that_is_not_allowed_is_left_to_django(headers: dict[str, str], grouped: list[int]) -> None:
    assert send({**headers, "Host": "evil.example"}, ADD).status_code == 400
    assert grouped == []


def test_plain_http_is_left_to_django_if_it_redirects(
    headers: dict[str, str], grouped: list[int], settings: Any
) -> None:
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    send(headers, ADD)
    assert grouped == []
    assert send({**headers, "X-Forwarded-Proto": "https"}, {**ADD, "id": "k2"}).json()["result"] == "created"
    assert grouped == [1]


@pytest.mark.django_db
def test_application_of_the_tests_is_made_again_when_a_setting_changes(settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = True
    left_to_django = {"Authorization": "Bearer a,Bearer b"}
    assert send(left_to_django, ADD).status_code == 301
    settings.SECURE_SSL_REDIRECT = False
    assert send(left_to_django, ADD).status_code == 401


def test_the_proxy_decides_what_is_https_as_for_django(
    headers: dict[str, str], grouped: list[int], settings: Any
) -> None:
    """The proxy may speak TLS with this server, and plain HTTP with its clients."""
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    plain = {**headers, "X-Forwarded-Proto": "http"}
    assert send(plain, ADD, scheme="https").status_code == 301
    assert grouped == []
    assert send(headers, ADD, scheme="https").json()["result"] == "created"
    assert grouped == [1]


def test_user_agents_that_the_site_refuses_are_left_to_django(
    headers: dict[str, str], grouped: list[int], settings: Any
) -> None:
    settings.DISALLOWED_USER_AGENTS = [re.compile("^Bad")]
    assert send({**headers, "User-Agent": "BadBot"}, ADD).status_code == 403
    assert grouped == []


urlpatterns = [
    path("api/own/", csrf_exempt(lambda request: HttpResponse(request.body))),
    path("api/", include("delaytasks.api.urls")),
]


@pytest.mark.parametrize("who", [{}, {"Authorization": "Bearer of.another"}, {"Cookie": "sessionid=x"}], ids=str)
def test_a_view_of_the_site_below_the_same_prefix_gets_the_whole_body(who: dict[str, str], settings: Any) -> None:
    """It has callers of its own, and may allow larger bodies than the API."""
    settings.ROOT_URLCONF = __name__
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_MAX_REQUEST_BYTES": 50}
    answer = asgi_client.request("POST", "/api/own/", b"x" * 100, "text/plain", who)
    assert answer.content == b"x" * 100
    assert "Connection" not in answer.headers


class ListedAddresses:
    """A site's middleware that refuses all addresses."""

    sync_capable, async_capable = False, True

    def __init__(self, get_response: Any) -> None:
        markcoroutinefunction(self)

    async def __call__(self, request: Any) -> HttpResponse:
        return HttpResponse("Not from there.", status=403)


def test_middleware_of_the_site_sees_every_request_unless_it_is_bypassed(
    headers: dict[str, str], grouped: list[int], settings: Any, caplog: Any
) -> None:
    name = f"{__name__}.ListedAddresses"
    settings.MIDDLEWARE = [name, *settings.MIDDLEWARE]
    application.unknown_middleware.cache_clear()
    for _ in range(2):
        assert send(headers, ADD).status_code == 403
    assert grouped == []
    assert caplog.text.count("FastPath leaves all requests to Django") == 1
    assert name in caplog.text
    bypassing = FastPath(ASGIHandler(), bypassed=settings.MIDDLEWARE)
    assert send(headers, ADD, application=bypassing).json()["result"] == "created"
    assert grouped == [1]


def test_two_tokens_in_one_request_are_no_token(headers: dict[str, str], grouped: list[int]) -> None:
    doubled = f"{headers['Authorization']},{headers['Authorization']}"
    assert send({"Authorization": doubled}, ADD).status_code == 401
    assert grouped == []


@pytest.mark.parametrize("wait", [0, 30])
def test_jobs_reserved_for_a_client_that_is_gone_are_released(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch, wait: int
) -> None:
    schedule.schedule("mail.send", "k", delay=0)
    reserve, reserved, left = leases.reserve, threading.Event(), threading.Event()

    def reserve_slowly(*args: Any, **kwargs: Any) -> Any:
        jobs = reserve(*args, **kwargs)
        reserved.set()
        left.wait(10)
        return jobs

    async def gone() -> None:
        await asyncio.to_thread(reserved.wait, 10)
        asyncio.get_running_loop().call_later(0.05, left.set)

    monkeypatch.setattr(leases, "reserve", reserve_slowly)
    body = json.dumps({**POP, "wait": wait}).encode()
    running = asgi_client.arequest("POST", "/api/queue/", body, "application/json", headers, gone=gone)
    assert asyncio.run_coroutine_threadsafe(running, asgi_client._loop()).result(20).status_code == 499

    def is_released() -> bool:
        job = Job.objects.get()
        return (job.state, job.attempt) == (State.DELAYED, 1)

    wait_until(is_released, seconds=10, what="the job to be released")


@pytest.mark.parametrize("wait", [0, 30])
def test_job_reserved_at_once_for_a_client_that_left_at_once_is_released(
    headers: dict[str, str], wait: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch has not begun so soon: the application checks for a disconnection before it sends the answer."""
    monkeypatch.setattr(clients, "WATCH_AFTER_SECONDS", 60)
    job = schedule.schedule("mail.send", "k", delay=0)

    async def gone() -> None:
        pass

    assert send(headers, {**POP, "wait": wait}, gone=gone).status_code == 499
    released = JobEvent.objects.filter(job_id=job.pk, outcome="released")
    wait_until(released.exists, seconds=10, what="the job to be released")


def test_waiting_client_that_leaves_is_no_longer_waited_for(headers: dict[str, str]) -> None:
    async def gone() -> None:
        await asyncio.to_thread(wait_until, lambda: consumers._queues, seconds=10, what="the consumer to wait")

    consumers = notifier.waiting_consumers("default")
    assert send(headers, {**POP, "wait": 30}, gone=gone).status_code == 499
    assert not consumers._queues


@pytest.mark.parametrize("way", ["fast path", "view"])
def test_consumer_that_is_woken_in_vain_during_each_try_is_answered_after_its_wait(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    tries: list[float] = []

    def try_in_vain(*_: Any, **__: Any) -> list[Any]:
        tries.append(time.monotonic())
        assert len(tries) < 100
        notifier.waiting_consumers("default").wake("mail.send", 1)
        time.sleep(0.05)
        return []

    if way == "view":
        monkeypatch.setattr(endpoints, "_wait_for_jobs", fall_back)
    monkeypatch.setattr(leases, "reserve", try_in_vain)
    response = send(headers, {"command": "pop", "topic": "mail.send", "wait": 0.3})
    assert (response.status_code, len(tries) > 1) == (200, True)


def test_request_that_has_waited_in_the_fast_path_does_not_wait_again_in_the_view(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_and_fall_back(*_: Any) -> None:
        await asyncio.sleep(0.5)
        raise FallBack

    waits: list[float] = []

    async def never_woken(_: Any, seconds: float) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(notifier.Waiter, "wait_for_wake", never_woken)
    monkeypatch.setattr(endpoints, "_wait_for_jobs", wait_and_fall_back)
    assert send(headers, {"command": "pop", "topic": "mail.send", "wait": 0.5}).status_code == 200
    assert len(waits) == 1
    assert waits[0] <= 0


async def fall_back(*_: Any) -> None:
    raise FallBack


def test_empty_message_after_the_body_is_no_disconnection() -> None:
    """A server may send one; see also Body.replay()."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def run() -> bool:
        return clients.has_left(receive)

    assert not asyncio.run(run())


def test_client_that_leaves_just_when_the_block_ends_is_noticed_and_nothing_else_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch has ended, but the event loop has not called back yet: it would cancel what follows the block."""
    monkeypatch.setattr(clients, "WATCH_AFTER_SECONDS", 0)
    answered = asyncio.Event()

    async def receive() -> Any:
        await answered.wait()
        return {"type": "http.disconnect"}

    async def run() -> bool:
        with clients.CancelOnDisconnect(receive) as watch:
            while watch._watching is None or not watch._watching.done():
                answered.set()
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        return watch.has_left

    assert asyncio.run(run())


def test_block_that_is_cancelled_by_the_server_is_not_taken_for_a_disconnection() -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    async def serve() -> None:
        with clients.CancelOnDisconnect(receive):
            await asyncio.Event().wait()

    async def run() -> None:
        serving = asyncio.ensure_future(serve())
        await asyncio.sleep(0)
        serving.cancel()
        await serving

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


def test_concurrent_adds_of_one_key_create_one_job(headers: dict[str, str], grouped: list[int]) -> None:
    answers = at_once(headers, [("queue/", ADD)] * 8)
    assert sorted(answer.json()["success"] for answer in answers) == [False] * 7 + [True]
    assert Job.objects.count() == 1


def test_two_doors_to_one_key_are_never_in_one_group(
    headers: dict[str, str], grouped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would be answered as created."""
    batcher, add_each, begun = endpoints.batcher("add", "default"), groups.add_each, threading.Event()

    def add_when_both_wait(*args: Any) -> Any:
        monkeypatch.setattr(groups, "add_each", add_each)
        begun.set()
        wait_until(lambda: sum(map(len, batcher._queues.values())) == 2, seconds=5, what="two requests in the batcher")
        return add_each(*args)

    monkeypatch.setattr(groups, "add_each", add_when_both_wait)
    first = threading.Thread(target=at_once, args=(headers, [("queue/", {**ADD, "id": "first"})]))
    first.start()
    assert begun.wait(30)
    job = {"topic": ADD["topic"], "key": ADD["id"], "delay_seconds": 60}
    answers = at_once(headers, [("queue/", ADD), ("jobs/", job)])
    first.join()
    assert [answer.json().get("result") == "created" for answer in answers].count(True) == 1
    assert (sorted(Job.objects.values_list("key", flat=True)), grouped) == (["first", "k"], [1, 1, 1])


def at_once(headers: dict[str, str], requests: list[tuple[str, Any]]) -> list[Any]:
    """Send the requests at the same time. Return the answers."""

    async def run() -> list[Any]:
        sent = [
            asgi_client.arequest("POST", f"/api/{path}", json.dumps(data).encode(), "application/json", headers)
            for path, data in requests
        ]
        return list(await asyncio.gather(*sent))

    return list(asyncio.run_coroutine_threadsafe(run(), asgi_client._loop()).result(30))


def test_cache_in_the_database_keeps_no_connection(headers: dict[str, str], settings: Any) -> None:
    """Each thread of the loop would keep one: a pool would be empty, and a connection that is lost would stay."""
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "counts"}}
    throttling._breaker.reset()
    opened: dict[str, Any] = {}

    def note(connection: Any, **_: object) -> None:
        opened[threading.current_thread().name] = connection

    call_command("createcachetable", verbosity=0)
    connection_created.connect(note)
    try:
        assert send(headers, ADD).json()["success"]
    finally:
        connection_created.disconnect(note)
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE counts")
    of_loop = [each for name, each in opened.items() if name.startswith("asyncio_")]  # not those of batchers and views
    assert of_loop
    assert not [each for each in of_loop if each.connection is not None]


def test_database_that_does_not_answer_is_told(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(permissions, "find_token", fail)
    assert send(headers, ADD).status_code == 503  # the token is not known yet
    monkeypatch.undo()
    assert send(headers, {**ADD, "id": "one"}).json()["success"]
    monkeypatch.setattr(groups, "add_each", fail)
    refused = send(headers, ADD)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.json()["id"] == "k"


@pytest.mark.parametrize("command", [ADD, POP], ids=lambda command: command["command"])
def test_database_that_is_lost_and_found_during_a_request_makes_no_request_malformed(
    command: Any, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token's look-up fails, as after a failover, and the view's succeeds. A consumer ends at a status 400."""
    find_token, failures = permissions.find_token, [OperationalError("server closed the connection")]

    def fail_once(secret: str) -> Any:
        if failures:
            raise failures.pop()
        return find_token(secret)

    monkeypatch.setattr(permissions, "find_token", fail_once)
    answer = send(headers, command)
    assert (answer.status_code, answer.json()["success"], failures) == (200, True, [])


def test_body_of_a_stranger_with_a_cookie_is_not_read(rest_topics: None) -> None:
    """Only a session cookie makes a request that may be of staff; other cookies are easy to invent."""
    reads: list[str] = []

    async def django(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        reads.append(message["body"].decode())

    for cookie in ("a=b", "sessionid=invented"):
        send({"Cookie": cookie}, "text", application=FastPath(django))
    assert reads == ["", '"text"']


def test_request_after_a_revocation_does_not_get_an_earlier_answer(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first query has read the token when it is revoked, and answers later."""
    look_up, began, revoked = callers._look_up, threading.Event(), threading.Event()

    def look_up_slowly(secret: str) -> Any:
        caller = look_up(secret)
        if not began.is_set():
            began.set()
            revoked.wait(10)
        return caller

    monkeypatch.setattr(callers, "_look_up", look_up_slowly)
    secret = headers["Authorization"].removeprefix("Bearer ")

    async def run() -> tuple[Any, Any]:
        first = asyncio.ensure_future(callers.find(secret))
        await asyncio.to_thread(began.wait, 10)
        await asyncio.to_thread(Token.objects.update, revoked=True)
        second = asyncio.ensure_future(callers.find(secret))
        await asyncio.wait([second], timeout=0.2)
        revoked.set()
        return await first, await second

    before, after = asyncio.run_coroutine_threadsafe(run(), asgi_client._loop()).result(20)
    assert before is not None
    assert after is None


def test_token_revoked_in_plain_sql_while_its_poll_waits_gets_no_job(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, tried = leases.reserve, threading.Event()

    def reserve_and_tell(*args: Any, **kwargs: Any) -> Any:
        jobs = reserve(*args, **kwargs)
        tried.set()
        return jobs

    monkeypatch.setattr(leases, "reserve", reserve_and_tell)
    body = json.dumps({**POP, "wait": 20}).encode()
    running = asgi_client.arequest("POST", "/api/queue/", body, "application/json", headers)
    answer = asyncio.run_coroutine_threadsafe(running, asgi_client._loop())
    consumers = notifier.waiting_consumers("default")
    assert tried.wait(10), "the poll has not tried to reserve"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delaytasks_api_token SET revoked = %s", [True])
    schedule.schedule("mail.send", "k", delay=0)
    consumers.wake("mail.send", 1)
    assert answer.result(20).status_code == 401
    assert Job.objects.get().attempt == 0
