"""The receivers of docs/clients, in Node and in PHP, accept what is signed and nothing else."""

import base64
import hmac
import http.client
import os
import shutil
import socket
import time
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook as Signer

from delaytasks.forwarding import Message, TargetDown, Webhook
from tests.conftest import not_run
from tests.support.installation import ROOT, Process
from tests.support.servers import free_port, tail, wait_until

EXAMPLES = ROOT / "docs" / "clients"
CURES = {"node": "apt-get install nodejs", "php": "apt-get install php-cli"}
SECRET, OLD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
# The message of the tests of Standard Webhooks (github.com/standard-webhooks/standard-webhooks, licence: MIT),
# libraries/python/tests/test_webhooks.py, and what they do with its headers: a function of the right headers.
ID, PAYLOAD = "msg_p5jXN8AQM9LWM0D4loKWxJek", '{"test": 2432232314}'
WRONG, OTHER = "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OA=", "Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="
REFUSED = {
    "missing id": lambda headers: headers | {"webhook-id": None},
    "missing timestamp": lambda headers: headers | {"webhook-timestamp": None},
    "invalid timestamp": lambda headers: headers | {"webhook-timestamp": "hello"},
    "missing signature": lambda headers: headers | {"webhook-signature": None},
    "invalid signature": lambda headers: headers | {"webhook-signature": f"v1,{WRONG}"},
    "old timestamp": lambda headers: signed(-301),
    "new timestamp": lambda headers: signed(400),  # some time passes before it arrives
}  # fmt: skip
ACCEPTED = {
    "valid signature": lambda headers: headers,
    "several signatures": lambda headers: (
        headers | {"webhook-signature": f"v1,{OTHER} v2,{OTHER} {headers['webhook-signature']} v1,{OTHER}"}
    ),
}


def signed(seconds=0):
    """Return the headers of a message that was signed `seconds` from now."""
    now = datetime.fromtimestamp(int(time.time()) + seconds, UTC)
    return {
        "webhook-id": ID,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Signer(SECRET).sign(ID, now, PAYLOAD),
    }


@pytest.fixture(params=CURES)
def program(request):
    if shutil.which(request.param) is None:
        text = f"the receiver in {request.param}, as this machine has none: {CURES[request.param]}"
        request.config.stash[not_run].add(text)
        pytest.skip(text)
    return request.param


@pytest.fixture
def start(program, tmp_path):
    """Start the receiver with a secret. Return its process and its port."""
    started = []

    def start(secret):
        port = free_port()
        command = {
            "node": ["node", str(EXAMPLES / "webhook.mjs"), str(port)],
            "php": ["php", "-S", f"127.0.0.1:{port}", str(EXAMPLES / "webhook.php")],
        }[program]
        process = Process(program, command, tmp_path, {"PATH": os.environ["PATH"], "WEBHOOK_SECRET": secret})
        started.append(process)
        wait_until(lambda: listens(port), seconds=20, what=lambda: f"{program}:\n{tail(process.log)}")
        return process, port

    yield start
    for process in started:
        process.kill()


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def status_of(port, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    given = {name: text for name, text in headers.items() if text is not None}
    connection.request("POST", "/", PAYLOAD, {"Content-Type": "application/json", **given})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_")], ids=["prefix", "no prefix"])
def test_the_cases_of_standard_webhooks(start, secret):
    _, port = start(secret)
    found = {case: status_of(port, change(signed())) for case, change in (REFUSED | ACCEPTED).items()}
    assert found == dict.fromkeys(REFUSED, 401) | dict.fromkeys(ACCEPTED, 204)


@pytest.mark.parametrize("secret", ["", "whsec_"])
def test_a_receiver_whose_secret_is_not_set_accepts_nothing(start, secret):
    """Anybody can sign with an empty key. An environment without the variable is one with an empty secret for PHP."""
    _, port = start(secret)
    headers = signed()
    digest = hmac.digest(b"", f"{ID}.{headers['webhook-timestamp']}.{PAYLOAD}".encode(), "sha256")
    assert status_of(port, headers | {"webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}) == 401


def test_a_sender_that_breaks_off_does_not_end_the_receiver(start):
    _, port = start(SECRET)
    with socket.create_connection(("127.0.0.1", port)) as sender:
        sender.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        sender.shutdown(socket.SHUT_WR)
        while sender.recv(4096):  # until the receiver has closed the connection, too
            pass
    assert status_of(port, signed()) == 204


def test_what_a_webhook_sends_is_accepted_also_while_its_secret_rotates(start):
    process, port = start(SECRET)

    def deliver(secret):
        message = Message("42", "order.close", "order:1042", {"order": "é"}, datetime(2030, 1, 1, tzinfo=UTC))
        options = {"allow_networks": ["127.0.0.0/8"], "allow_http": True, "timeout": 20}
        Webhook(f"http://localhost:{port}/", secret=secret, **options).deliver(message, 20)

    deliver(SECRET)
    deliver([(OLD_SECRET, None), SECRET])
    for secret in (OLD_SECRET, None):
        with pytest.raises(TargetDown, match="401"):
            deliver(secret)
    wait_until(lambda: process.log.read_text().count("received 42") == 2, seconds=5, what="two messages")
