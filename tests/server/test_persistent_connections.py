"""Many requests on one connection: one after the other, and pipelined, before the answers to those before."""

import http.client
import json
import time

from delaytasks.models import Job
from tests.support.http_client import headers_of
from tests.support.process_usage import resident_mib
from tests.support.raw_http import connect, request

MANY = 200
FLOOD_BYTES = 64 * 1024 * 1024
GROWN_MIB = 16
QUICK_SECONDS = 5.0  # generous: machines that run tests are busy


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


def test_requests_behind_one_that_waits_are_not_read_without_end(here, api, topic):
    """The server stops reading, so the sender blocks, and nothing behind the waiting request is begun."""
    process = next(process for process in here.processes if process.name == "web")
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
