"""The HTTP client, against a small server that can misbehave."""

import ast
import http.client
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delaytasks import client as module
from delaytasks.client import Client, ClientError, Refused, TooManyRequests, Unauthorized, Unavailable
from tests.support.servers import free_port, wait_until

from .support.fake_queue import CERTIFICATE, EPOCH, TOKEN, Bad, FakeQueue, running

SOURCE = Path(module.__file__)


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    with running() as fake:
        yield fake


@pytest.fixture
def client(fake: FakeQueue) -> Iterator[Client]:
    with Client(fake.url, TOKEN, timeout_seconds=5) as client:
        yield client


def warm(client: Client, fake: FakeQueue) -> None:
    """Leave the client with a connection that has been used."""
    client.peek(topic="none")
    fake.received.clear()


# The file


def test_only_the_standard_library_is_imported() -> None:
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert {str(name).partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_a_copy_of_the_file_alone_works_without_any_package(tmp_path: Path, fake: FakeQueue) -> None:
    (tmp_path / "queue_client.py").write_bytes(SOURCE.read_bytes())
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import queue_client\n"
        f"with queue_client.Client({fake.url!r}, {TOKEN!r}) as client:\n"
        "    print(client.add('t', 'a', delay=0, ttr=60), client.pop('t').id)\n"
        "    print([name for name in sys.modules if name.partition('.')[0] in ('django', 'delaytasks')])\n"
    )
    python = [sys.executable, "-I", "-S", "-B", "-W", "error"]
    done = subprocess.run([*python, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("created a\n[]\n", "")


# Commands


def test_a_job_goes_from_add_to_finish(client: Client, fake: FakeQueue) -> None:
    assert client.add("t", "order:1", delay=timedelta(0), ttr=timedelta(minutes=1), body={"order": 1}) == "created"
    job = client.pop("t", consumer="shop-3")
    assert job is not None
    assert (job.id, job.topic, job.attempt, job.body, job.ttr) == ("order:1", "t", 1, {"order": 1}, 60)
    assert (job.due_at, job.deadline) == (EPOCH, EPOCH + timedelta(minutes=1))
    assert client.touch(job) == EPOCH + timedelta(minutes=2)
    client.finish(job)
    assert fake.jobs["order:1"].state == "finished"
    assert fake.asked("pop") == [{"command": "pop", "topic": "t", "count": 1, "wait": 0, "consumer": "shop-3"}]
    assert fake.asked("finish") == [{"command": "finish", "topic": "t", "id": "order:1", "attempt": 1}]


def test_an_expiry_is_sent_in_seconds_and_only_if_it_is_given(client: Client, fake: FakeQueue) -> None:
    client.add("t", "a", delay=0, ttr=60, expires=timedelta(minutes=5))
    client.add("t", "b", delay=0, ttr=60)
    assert [command.get("expires") for command in fake.asked("add")] == [300, None]
    assert "expires" not in fake.asked("add")[1]


def test_an_empty_queue_returns_no_job(client: Client) -> None:
    assert client.pop("t") is None
    assert client.pop_many("t", 10, wait=0.01) == []


def test_several_jobs_are_popped_at_once(client: Client, fake: FakeQueue) -> None:
    for number in range(3):
        fake.put(f"a{number}")
    assert [job.id for job in client.pop_many("t", 2)] == ["a0", "a1"]


def test_a_job_can_have_a_body_of_null(client: Client, fake: FakeQueue) -> None:
    fake.put("a", body=None)
    job = client.pop("t")
    assert job is not None
    assert job.body is None


def test_a_job_is_released_with_or_without_an_error(client: Client, fake: FakeQueue) -> None:
    fake.put("a")
    job = client.pop("t")
    assert job is not None
    assert client.release(job) == "delayed"
    again = client.pop("t")
    assert again is not None
    client.release(again, delay=timedelta(seconds=5), error="the bank is closed")
    plain, failed = fake.asked("release")
    assert set(plain) == {"command", "topic", "id", "attempt"}
    assert (failed["delay"], failed["error"]) == (5, "the bank is closed")


def test_only_the_printable_end_of_a_reason_is_sent(client: Client, fake: FakeQueue) -> None:
    fake.put("a")
    job = client.pop("t")
    assert job is not None
    client.bury(job, "x" * 5000 + "\tred \x1b[31m\x00 \ud800\nend")
    (buried,) = fake.asked("bury")
    assert buried["reason"].endswith("x\tred ?[31m? ?\nend")
    assert len(buried["reason"]) == 4000


def test_delete_returns_the_outcome_even_if_refused(client: Client, fake: FakeQueue) -> None:
    fake.put("a")
    fake.put("b")
    assert client.delete("a", topic="t") == "cancelled"
    assert client.delete("never") == "unknown"
    client.pop("t")
    assert client.delete("b") == "running"


def test_peek_shows_a_job_or_the_next_of_a_topic(client: Client, fake: FakeQueue) -> None:
    fake.put("a")
    assert client.peek("a") == client.peek(topic="t") == {"id": "a", "state": "live"}
    assert client.peek(topic="empty") is None
    with pytest.raises(Refused, match="unknown"):
        client.peek("never")


def test_a_body_that_is_not_json_is_not_sent(client: Client, fake: FakeQueue) -> None:
    with pytest.raises(ValueError, match="JSON"):
        client.add("t", "a", delay=0, ttr=60, body=float("nan"))
    assert fake.received == []


# Refusals


def test_a_refusal_has_the_servers_reason(client: Client, fake: FakeQueue) -> None:
    fake.put("a")
    with pytest.raises(Refused, match=r"^'a' is live already\.$") as refused:
        client.add("t", "a", delay=0, ttr=60)
    assert (refused.value.error, refused.value.status) == ("'a' is live already.", 200)


def test_a_late_finish_is_refused(client: Client, fake: FakeQueue) -> None:
    fake.put("a")
    late = client.pop("t")
    assert late is not None
    fake.jobs["a"].lease = 0.0
    assert client.pop("t") is not None
    with pytest.raises(Refused, match="Attempt 1"):
        client.finish(late)


def test_an_invalid_command_is_refused_with_its_status(client: Client, fake: FakeQueue) -> None:
    fake.bad["add"].append(Bad(status=400, text='{"success": false, "error": "TTR: -1 is too small."}'))
    with pytest.raises(Refused, match="TTR: -1 is too small") as refused:
        client.add("t", "a", delay=0, ttr=-1)
    assert refused.value.status == 400


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_reported_but_not_shown(fake: FakeQueue, client: Client, status: int) -> None:
    fake.bad["pop"].append(Bad(status=status))
    with pytest.raises(Unauthorized, match="does not accept the token") as error:
        client.pop("t")
    assert error.value.status == status
    assert TOKEN not in f"{error.value} {client!r}"


def test_an_unknown_token_is_not_accepted(fake: FakeQueue) -> None:
    with Client(fake.url, "another") as client, pytest.raises(Unauthorized, match="This token is not known"):
        client.pop("t")


def test_too_many_requests_has_the_retry_after_seconds(client: Client, fake: FakeQueue) -> None:
    fake.bad["pop"].append(Bad(status=429, headers={"Retry-After": "17"}))
    with pytest.raises(TooManyRequests, match="Too many requests") as error:
        client.pop("t")
    assert error.value.retry_after_seconds == 17


@pytest.mark.parametrize("text", [None, "<html>Bad gateway</html>", ""])
def test_a_5xx_answer_of_the_server_or_a_proxy_is_unavailable(
    client: Client, fake: FakeQueue, text: str | None
) -> None:
    fake.bad["finish"].append(Bad(status=502, headers={"Retry-After": "5"}, text=text))
    fake.put("a")
    job = client.pop("t")
    assert job is not None
    with pytest.raises(Unavailable) as error:
        client.finish(job)
    assert error.value.perhaps_done
    assert error.value.retry_after_seconds == 5


def test_after_a_refused_connection_nothing_was_done() -> None:
    client = Client(f"http://127.0.0.1:{free_port()}/api/queue/", TOKEN)
    with pytest.raises(Unavailable, match="cannot be reached") as error:
        client.add("t", "a", delay=0, ttr=60, on_conflict="keep")
    assert not error.value.perhaps_done


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://[::1]/api/queue/", "::1", 80),
        ("https://[2001:db8::5]/api/queue/", "2001:db8::5", 443),
        ("http://[::1]:8000/api/queue/", "::1", 8000),
    ],
)
def test_an_ipv6_address_needs_no_port(url: str, host: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, int]] = []

    def refuse(self: http.client.HTTPConnection) -> None:
        tried.append((self.host, self.port))
        raise ConnectionRefusedError

    monkeypatch.setattr(http.client.HTTPConnection, "connect", refuse)
    with pytest.raises(Unavailable):
        Client(url, TOKEN).pop("t")
    assert tried == [(host, port)]


@pytest.mark.parametrize(("status", "text"), [(404, "<h1>Not found</h1>"), (200, "[1]"), (200, "hello")])
def test_a_url_that_is_not_a_queue_is_named(client: Client, fake: FakeQueue, status: int, text: str) -> None:
    fake.bad["pop"].append(Bad(status=status, text=text))
    with pytest.raises(ClientError, match=r"is not a queue.*/api/queue/") as error:
        client.pop("t")
    assert type(error.value) is ClientError


def test_a_redirect_is_not_followed(client: Client, fake: FakeQueue) -> None:
    with running() as elsewhere:
        fake.bad["pop"].append(Bad(status=308, headers={"Location": elsewhere.url}, text=""))
        with pytest.raises(ClientError, match=f"redirects to {elsewhere.url}"):
            client.pop("t")
        assert elsewhere.received == []


@pytest.mark.parametrize(
    "url", ["tasks.example.com/api", "ftp://a/b", "https://", "https://me:pw@a/", "https://a/?t=1"]
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="looks like https://"):
        Client(url, TOKEN)


@pytest.mark.parametrize("token", ["", "dt_x\n", "two words", "é"])
def test_an_invalid_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(ValueError, match="token") as error:
        Client("https://a/", token)
    assert not token.strip() or token.strip() not in str(error.value)


# Connections


def test_a_connection_is_reused_and_each_thread_has_its_own(client: Client, fake: FakeQueue) -> None:
    for _ in range(5):
        client.peek(topic="t")
    assert len(fake.connections) == 1
    threads = [threading.Thread(target=client.pop, args=("t",), kwargs={"wait": 5}) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(fake.asked("pop")) == 3, seconds=5, what="three pops that wait")
    for number in range(3):
        fake.put(f"a{number}")
    for thread in threads:
        thread.join()
    assert len(fake.connections) == 3


def test_a_connection_closed_while_idle_is_detected_before_it_is_used(
    client: Client, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []
    request = module.http.client.HTTPConnection.request
    monkeypatch.setattr(
        module.http.client.HTTPConnection, "request", lambda *args: (requests.append(args), request(*args))
    )
    for number in range(3):
        assert client.add("t", f"a{number}", delay=0, ttr=60) == "created"
        fake.close_idle_connections()
        sockets = [connection.sock for _, connection in client._idle]
        wait_until(lambda s=sockets: all(c.recv(1, socket.MSG_PEEK) == b"" for c in s), seconds=5, what="the end")
    assert len(fake.asked("add")) == len(fake.connections) == len(requests) == 3


def test_a_long_idle_connection_is_not_reused(client: Client, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(client, fake)
    monkeypatch.setattr(module, "IDLE_SECONDS", 0)
    warm(client, fake)
    assert len(fake.connections) == 2


def test_a_forked_process_does_not_use_its_parents_connection(
    client: Client, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(client, fake)
    parents = client._idle
    monkeypatch.setattr(os, "getpid", lambda: -1)
    warm(client, fake)
    assert len(fake.connections) == 2
    parents[0][1].close()


def test_closing_the_client_closes_a_busy_connection_after_its_answer(client: Client, fake: FakeQueue) -> None:
    thread = threading.Thread(target=client.pop, args=("t",), kwargs={"wait": 5})
    thread.start()
    wait_until(lambda: fake.asked("pop"), seconds=5, what="a pop")
    client.close()
    fake.put("a")
    thread.join()
    assert client._idle == []


def send(client: Client, fake: FakeQueue, command: str) -> None:
    job = module.Job("a", "t", 1, None, 60, EPOCH, EPOCH)
    match command:
        case "add":
            client.add("t", "b", delay=0, ttr=60)
        case "replace":
            client.add("t", "b", delay=0, ttr=60, on_conflict="replace")
        case "keep":
            client.add("t", "b", delay=0, ttr=60, on_conflict="keep")
        case "delete":
            client.delete("a")
        case "pop":
            client.pop("t")
        case "peek":
            client.peek(topic="t")
        case _:
            getattr(client, command)(job)


@pytest.mark.parametrize("command", ["keep", "pop", "peek", "touch"])
def test_a_repeatable_command_is_repeated_once_when_a_reused_connection_breaks(
    client: Client, fake: FakeQueue, command: str
) -> None:
    fake.put("a")
    client.pop("t")
    warm(client, fake)
    name = "add" if command == "keep" else command
    fake.bad[name].append(Bad(lose=True))
    send(client, fake, command)
    assert len(fake.asked(name)) == 2
    fake.bad[name].extend([Bad(lose=True), Bad(lose=True)])
    with pytest.raises(Unavailable):
        send(client, fake, command)
    assert len(fake.asked(name)) == 4, "only once"


@pytest.mark.parametrize("command", ["add", "replace", "finish", "release", "bury", "delete"])
def test_other_commands_are_not_repeated(client: Client, fake: FakeQueue, command: str) -> None:
    fake.put("a")
    client.pop("t")
    warm(client, fake)
    name = "add" if command == "replace" else command
    fake.bad[name].append(Bad(lose=True))
    with pytest.raises(Unavailable, match="may have been done") as error:
        send(client, fake, command)
    assert error.value.perhaps_done
    assert len(fake.asked(name)) == 1


def test_the_caller_can_repeat_a_lost_add_with_keep(client: Client, fake: FakeQueue) -> None:
    fake.bad["add"].append(Bad(lose=True))
    with pytest.raises(Unavailable) as error:
        client.add("t", "a", delay=60, ttr=60)
    assert error.value.perhaps_done
    assert client.add("t", "a", delay=60, ttr=60, on_conflict="keep") == "kept"


def test_nothing_is_repeated_on_a_new_connection_or_after_a_timeout(fake: FakeQueue) -> None:
    with Client(fake.url, TOKEN, timeout_seconds=0.2) as client:
        fake.bad["peek"].append(Bad(lose=True))
        with pytest.raises(Unavailable, match="broke the connection"):
            client.peek(topic="t")
        warm(client, fake)
        fake.bad["peek"].append(Bad(mute=True))
        with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s") as error:
            client.peek(topic="t")
        assert error.value.perhaps_done
        assert len(fake.asked("peek")) == 1


def test_a_connection_with_an_unread_answer_is_not_reused(
    client: Client, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.http.client.HTTPConnection, "getresponse", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.add("t", "a", delay=60, ttr=60)
    assert client._idle == []
    assert client.delete("never") == "unknown"


def test_a_refusal_of_a_large_body_by_something_before_the_queue_is_named(client: Client, fake: FakeQueue) -> None:
    fake.bad["add"].append(Bad(status=413, text='{"status": 413, "detail": "at most 16,777,216 bytes"}'))
    with pytest.raises(Refused, match="at most 16,777,216 bytes") as refused:
        client.add("t", "a", delay=60, ttr=60)
    assert refused.value.status == 413


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_body_refused_before_it_is_read_raises_the_servers_reason(
    client: Client, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    send = module.http.client.HTTPConnection.send

    def sent_and_broken(self: Any, data: bytes) -> None:
        send(self, data)
        if data.startswith(b"{"):
            raise error

    fake.bad["add"].append(Bad(status=413))
    monkeypatch.setattr(module.http.client.HTTPConnection, "send", sent_and_broken)
    with pytest.raises(Refused) as refused:
        client.add("t", "a", delay=60, ttr=60)
    assert refused.value.status == 413
    assert client._idle == [], "the server may not have read all of it"


def test_the_wait_is_added_to_the_timeout(fake: FakeQueue) -> None:
    with Client(fake.url, TOKEN, timeout_seconds=1.0) as client:
        started = time.monotonic()
        assert client.pop("t", wait=1.2) is None
        assert time.monotonic() - started >= 1.2


def test_proxies_of_the_environment_are_not_used(
    fake: FakeQueue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert client.pop("t") is None


def test_an_untrusted_certificate_is_not_accepted() -> None:
    with running(tls=True) as fake:
        with Client(fake.url, TOKEN) as client, pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            client.pop("t")
        trusting = ssl.create_default_context(cafile=CERTIFICATE)
        other_name = fake.url.replace("localhost", "127.0.0.1")
        with (
            Client(other_name, TOKEN, ssl_context=trusting) as client,
            pytest.raises(Unavailable, match=r"127\.0\.0\.1"),
        ):
            client.pop("t")
        assert fake.received == []
        with Client(fake.url, TOKEN, ssl_context=trusting) as client:
            assert client.pop("t") is None


# Ending waits


@pytest.mark.parametrize("tls", [False, True])
def test_stop_waiting_ends_pops_and_reads_a_job_that_arrives_at_that_moment(tls: bool) -> None:
    context = ssl.create_default_context(cafile=CERTIFICATE)
    with running(tls=tls) as fake, Client(fake.url, TOKEN, ssl_context=context) as client:
        fake.put("late")
        fake.parting_gift = "late"
        jobs: list[Any] = []
        thread = threading.Thread(target=lambda: jobs.extend(client.pop_many("t", 1, wait=30)))
        thread.start()
        wait_until(lambda: fake.asked("pop"), seconds=5, what="a pop")
        client.stop_waiting()
        thread.join(5)
        assert [job.id for job in jobs] == ["late"]
        assert client.pop("t", wait=30) is None, "later waits do not start"
        assert len(fake.asked("pop")) == 1


def test_ending_the_waits_ignores_a_connection_whose_answer_was_its_last(client: Client, fake: FakeQueue) -> None:
    """http.client drops the socket when it has read `Connection: close`, before the body arrives."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(client.pop("t", wait=30)))
    thread.start()
    wait_until(lambda: fake.asked("pop"), seconds=5, what="a pop")
    client._waiting.add(http.client.HTTPConnection("localhost"))  # without a socket
    client.stop_waiting()
    thread.join(5)
    assert results == [None]


def test_at_once_ends_the_wait_if_the_server_does_not_react(client: Client, fake: FakeQueue) -> None:
    fake.hears_goodbyes = False
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(client.pop("t", wait=30)))
    thread.start()
    wait_until(lambda: fake.asked("pop"), seconds=5, what="a pop")
    client.stop_waiting()
    client.stop_waiting(at_once=True)
    thread.join(5)
    assert results == [None]
    fake.hears_goodbyes = True


def test_a_successful_command_logs_nothing(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client.pop("t")
    assert caplog.records == []
