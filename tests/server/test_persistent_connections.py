"""Many requests on one connection: one after the other, and pipelined, before the answers to those before."""

import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

from delaytasks.models import Job
from tests.support.http_client import headers_of
from tests.support.process_usage import resident_mib
from tests.support.raw_http import PATIENCE_SECONDS, connect, request

pytestmark = pytest.mark.usefixtures("http_parser")
MANY = 200
FLOOD_BYTES = 64 * 1024 * 1024
GROWN_MIB = 16
QUICK_SECONDS = 5.0  # generous: machines that run tests are busy


FLOOD_SECONDS = 3.0
SMALLEST = b"GET /api/health/ HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module", params=["h11", "httptools"])
def http_parser(request):
    """Both parsers: `--http auto` uses httptools where it is installed."""
    return request.param


def web_of(here):
    return next(process for process in here.processes if process.name == "web")


def command(token, **fields):
    data = request("POST", "/api/queue/", body=json.dumps(fields).encode(), token=token)
    return data.replace(b"Connection: close\r\n", b"")


def read_answer(file):
    """Return the body of the next answer."""
    assert file.readline().split()[1] == b"200"
    return file.read(int(http.client.parse_headers(file)["Content-Length"]))


def add(topic, key):
    return {"command": "add", "topic": topic, "id": key, "delay": 600, "TTR": 60, "body": 1}


def test_one_connection_serves_many_requests(here, api, topic):
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=30)
    connection.connect()
    own = connection.sock.getsockname()
    for number in range(MANY):
        connection.request("POST", "/api/queue/", json.dumps(add(topic, f"a{number}")), headers_of(api.token))
        assert json.loads(connection.getresponse().read())["success"]
    assert connection.sock.getsockname() == own
    connection.close()


def test_pipelined_requests_are_answered_in_their_order(here, api, topic):
    with connect(here.port) as connection:
        connection.sendall(b"".join(command(api.token, **add(topic, f"b{number}")) for number in range(MANY)))
        with connection.makefile("rb") as answers:
            ids = [json.loads(read_answer(answers))["id"] for _ in range(MANY)]
    assert ids == [f"b{number}" for number in range(MANY)]


def test_a_client_that_leaves_with_a_request_behind_its_poll_is_noticed(here, api, topic):
    with connect(here.port) as connection:
        behind = command(api.token, **add(topic, "behind"))
        connection.sendall(command(api.token, command="pop", topic=topic, wait=20) + behind)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1000) == b"", "the server does not answer, but hangs up"
    assert not Job.objects.filter(topic=topic).exists()


def test_requests_behind_one_that_waits_are_not_read_without_end(here, api, topic):
    """The server stops reading, so the sender blocks, and nothing behind the waiting request is begun."""
    process = web_of(here)
    before, taken = resident_mib(process.pid), 0
    data = command(api.token, **add(topic, "behind")) * 100
    with connect(here.port) as connection:
        connection.sendall(command(api.token, command="pop", topic=topic, wait=30))
        connection.settimeout(1.0)
        try:
            while taken < FLOOD_BYTES:
                taken += connection.send(data)
        except TimeoutError:
            pass
        assert taken < FLOOD_BYTES
        assert resident_mib(process.pid) - before < GROWN_MIB
        began = time.monotonic()
        assert api.get(f"topics/{topic}/").status == 200
        assert time.monotonic() - began < QUICK_SECONDS
        assert not Job.objects.filter(topic=topic).exists()


def test_a_request_after_a_pipelined_part_of_it_is_answered(here, api, topic):
    """Reading goes on after the requests that were read ahead."""
    with connect(here.port) as connection, connection.makefile("rb") as answers:
        for part in ("head", "body"):
            first, second = (command(api.token, **add(topic, f"{part}-{n}")) for n in (1, 2))
            cut = len(first) + (30 if part == "head" else len(second) - 1)
            for n, data in enumerate(((first + second)[:cut], (first + second)[cut:]), 1):
                connection.sendall(data)
                assert json.loads(read_answer(answers))["id"] == f"{part}-{n}"


def test_a_stranger_who_reads_the_answers_cannot_fill_the_memory_with_requests(here):
    """Each answered request let the server read another 256 KiB of them."""
    process, stop = web_of(here), threading.Event()
    before = resident_mib(process.pid)
    with connect(here.port) as connection:

        def read():
            with contextlib.suppress(OSError):
                while not stop.is_set() and connection.recv(65536):
                    pass

        reader = threading.Thread(target=read)
        reader.start()
        end = time.monotonic() + FLOOD_SECONDS
        connection.settimeout(FLOOD_SECONDS)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while time.monotonic() < end:
                connection.send(SMALLEST * 5000)
        grown = resident_mib(process.pid) - before
        stop.set()
        connection.close()
        reader.join(PATIENCE_SECONDS)
    assert grown < GROWN_MIB


def test_a_connection_with_too_many_pipelined_requests_loses_only_itself(here, api, topic):
    with connect(here.port) as connection, contextlib.suppress(OSError):
        connection.sendall(SMALLEST * 5000)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert api.get(f"topics/{topic}/").status == 200
