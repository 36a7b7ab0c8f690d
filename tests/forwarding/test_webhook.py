"""A webhook's request: signature, format, addresses, deadline and the meaning of each answer."""

import json
import os
import shutil
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_network
from types import SimpleNamespace

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from delaytasks.forwarding import Message, Rejected, TargetDown, Webhook
from delaytasks.forwarding import http as forward_http
from delaytasks.forwarding import webhook as webhook_module
from delaytasks.forwarding.addresses import is_allowed
from delaytasks.forwarding.targets import Failed
from delaytasks.forwarding.webhook import retry_after

from .conftest import CERTIFICATE

SECRET, OLD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
LOOPBACK = ["127.0.0.0/8"]
DUE = datetime(2030, 1, 1, tzinfo=UTC)


def message(format="cloudevents", body=None):
    return Message("42", "order.close", "order:1042", {"order": 1042} if body is None else body, DUE, format=format)


def webhook(receiver, path="/hook?x=1", **options):
    options = {"allow_networks": LOOPBACK, "allow_http": True, "timeout": 5, **options}
    return Webhook(f"http://localhost:{receiver.port}{path}", **options)


def deliver(target, message_=None, seconds=5):
    target.deliver(message_ or message(), seconds)


# -- the request --------------------------------------------------------------------------------


def test_a_message_is_a_structured_cloudevent(receiver):
    deliver(webhook(receiver))
    (request,) = receiver.requests
    event = from_http_event(HTTPMessage(request.headers, request.body))
    assert (event.get_id(), event.get_type(), event.get_subject()) == ("42", "order.close", "order:1042")
    assert (event.get_time(), event.get_source(), event.get_data()) == (DUE, "/delaytasks", {"order": 1042})
    assert (request.path, request.headers["host"]) == ("/hook?x=1", f"localhost:{receiver.port}")
    assert request.headers["webhook-id"] == "42"


@pytest.mark.parametrize("body", [{"order": "é"}, "text", 3, [1, None], False])
def test_a_message_is_a_binary_cloudevent(receiver, body):
    deliver(webhook(receiver), message("cloudevents-binary", body))
    (request,) = receiver.requests
    assert (request.headers["ce-id"], request.headers["ce-type"]) == ("42", "order.close")
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body) == body


def test_a_message_may_be_the_body_alone(receiver):
    deliver(webhook(receiver), message("json"))
    assert receiver.requests[0].body == b'{"order":1042}'
    assert "ce-id" not in receiver.requests[0].headers


def test_a_header_of_the_webhook_replaces_one_of_the_message_whatever_its_case_is(receiver):
    sent = []

    def answer(request):
        sent.extend(name.lower() for name in request.headers)
        request.send_response(204)
        request.end_headers()

    receiver.answer = answer
    deliver(webhook(receiver, headers={"content-type": "application/json", "USER-AGENT": "shop"}))
    assert len(sent) == len(set(sent))
    headers = receiver.requests[0].headers
    assert (headers["content-type"], headers["user-agent"]) == ("application/json", "shop")


def test_a_request_is_signed(receiver):
    deliver(webhook(receiver, secret=SECRET))
    (request,) = receiver.requests
    assert Verifier(SECRET).verify(request.body, request.headers)["id"] == "42"
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(request.body + b" ", request.headers)


def test_both_secrets_sign_while_they_rotate(receiver):
    deliver(webhook(receiver, secret=[SECRET, (OLD_SECRET, datetime.now(UTC) + timedelta(hours=1))]))
    (request,) = receiver.requests
    for secret in (SECRET, OLD_SECRET):
        Verifier(secret).verify(request.body, request.headers)


def test_an_expired_secret_does_not_sign(receiver):
    deliver(webhook(receiver, secret=[SECRET, (OLD_SECRET, datetime.now(UTC) - timedelta(hours=1))]))
    with pytest.raises(WebhookVerificationError):
        Verifier(OLD_SECRET).verify(receiver.requests[0].body, receiver.requests[0].headers)


def test_without_a_valid_secret_nothing_is_sent(receiver):
    target = webhook(receiver, secret=(SECRET, datetime.now(UTC) + timedelta(milliseconds=30)))
    end = time.monotonic() + 1
    with pytest.raises(TargetDown, match="has expired"):
        while time.monotonic() < end:
            deliver(target)


# -- connections --------------------------------------------------------------------------------


def test_tls_uses_the_name_of_the_url(tls_receiver):
    url = f"https://localhost:{tls_receiver.port}/"
    deliver(Webhook(url, allow_networks=LOOPBACK, ca_file=str(CERTIFICATE)))
    assert tls_receiver.requests[0].headers["host"] == f"localhost:{tls_receiver.port}"


@pytest.fixture
def loads(monkeypatch):
    """The names of the files whose certificates were loaded; None: the system's."""
    loads, create = [], ssl.create_default_context

    def load(cafile=None):
        loads.append(cafile)
        return create(cafile=cafile)

    monkeypatch.setattr(ssl, "create_default_context", load)
    monkeypatch.setattr(forward_http, "_contexts", {})
    return loads


def test_certificates_are_loaded_again_only_after_their_file_has_changed(tls_receiver, tmp_path, loads):
    ca_file = tmp_path / "ca.pem"
    shutil.copy(CERTIFICATE, ca_file)
    target = Webhook(f"https://localhost:{tls_receiver.port}/", allow_networks=LOOPBACK, ca_file=str(ca_file))
    for _ in range(3):
        deliver(target)
    assert loads == [str(ca_file)]
    os.utime(ca_file, (1, 1))
    deliver(target)
    assert loads == [str(ca_file)] * 2
    ca_file.unlink()
    with pytest.raises(TargetDown, match=r"ca_file .* cannot be read"):
        deliver(target)


def test_the_certificates_of_the_system_are_loaded_again_after_some_minutes(loads, monkeypatch):
    first = forward_http.tls_context(None)
    assert forward_http.tls_context(None) is first
    now = time.monotonic()
    monkeypatch.setattr(forward_http.time, "monotonic", lambda: now + forward_http.SYSTEM_SECONDS)
    assert forward_http.tls_context(None) is not first
    assert loads == [None, None]


def test_a_certificate_that_is_not_trusted_or_of_another_name_is_refused(tls_receiver, monkeypatch):
    for url, ca_file in ((f"https://localhost:{tls_receiver.port}/", None),
                         (f"https://other.example:{tls_receiver.port}/", str(CERTIFICATE))):  # fmt: skip
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", tls_receiver.port))])
        with pytest.raises(TargetDown, match="certificate"):
            deliver(Webhook(url, allow_networks=LOOPBACK, ca_file=ca_file))
    assert tls_receiver.requests == []


def test_a_receiver_that_does_not_answer_the_tls_handshake_is_away():
    """No message was sent, so the job is not the cause."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = Webhook(f"https://localhost:{server.getsockname()[1]}/", allow_networks=LOOPBACK)
        with pytest.raises(TargetDown, match="No TLS connection to localhost"):
            deliver(target, seconds=0.2)


def test_the_name_is_resolved_once_and_every_address_is_checked(receiver, monkeypatch):
    calls = []

    def rebinding(host, port, *args, **kwargs):
        calls.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    connected = []
    create = socket.create_connection

    def connect(address, **kwargs):
        connected.append(address)
        return create(address, **kwargs)

    monkeypatch.setattr(socket, "create_connection", connect)
    deliver(webhook(receiver))
    assert calls == ["localhost", "127.0.0.1"], "the second is no name: create_connection() parses the address"
    assert connected == [("127.0.0.1", receiver.port)], "the checked address, not the name"
    assert receiver.requests[0].headers["host"] == f"localhost:{receiver.port}"


def test_a_host_with_an_address_that_does_not_answer_is_called_at_the_next_one(receiver, monkeypatch):
    found = [(2, 1, 6, "", ("127.0.0.2", receiver.port)), (2, 1, 6, "", ("127.0.0.1", receiver.port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    create, timeouts, now = socket.create_connection, [], [1000.0]
    monkeypatch.setattr(forward_http, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def connect(address, timeout):
        timeouts.append(timeout)
        if address[0] == "127.0.0.2":
            now[0] += timeout
            raise TimeoutError
        return create(("127.0.0.1", receiver.port), timeout)

    monkeypatch.setattr(socket, "create_connection", connect)
    receiver.answer = lambda request: (request.send_response(204), request.end_headers())
    deliver(webhook(receiver), seconds=4)
    assert timeouts == [2, 2]


def test_nothing_is_sent_when_the_connection_has_taken_all_the_time(receiver, monkeypatch):
    create = socket.create_connection

    def connect(address, timeout):
        time.sleep(timeout)
        return create(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(TargetDown, match="connected too late"):
        deliver(webhook(receiver), seconds=0.1)
    assert receiver.requests == []


def test_one_private_address_among_public_ones_is_refused(monkeypatch):
    found = [(2, 1, 6, "", ("93.184.216.34", 443)), (2, 1, 6, "", ("10.0.0.5", 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    with pytest.raises(TargetDown, match=r"10\.0\.0\.5, an address that is not public"):
        deliver(Webhook("https://shop.example/"))


@pytest.mark.parametrize(
    "host", ["10.0.0.5", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:169.254.169.254]", "localhost"]
)
def test_a_private_host_is_refused_however_it_is_written(host):
    with pytest.raises(TargetDown, match="an address that is not public"):
        deliver(Webhook(f"https://{host}/"))


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255",
     "192.0.0.192", "5f00::1", "::1",
     "fe80::1%1", "fc00::1", "fec0::1", "ff02::1", "64:ff9b::a00:1", "2002:a00:1::",
     "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::", "::7f00:1", "::ffff:0:7f00:1", "4000::1"],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(address):
    assert not is_allowed(address, [])


def test_public_and_allowed_addresses_may_be_called():
    assert is_allowed("93.184.216.34", [])
    assert is_allowed("2606:2800:220:1::1", [])
    assert is_allowed("10.1.2.3", [ip_network("10.0.0.0/8")])
    assert is_allowed("::ffff:10.1.2.3", [ip_network("10.0.0.0/8")])


def test_proxies_of_the_environment_have_no_effect(receiver, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    deliver(webhook(receiver))
    assert len(receiver.requests) == 1


def test_nobody_listening_and_an_unknown_name_are_targets_that_are_away(receiver, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = Webhook(f"http://localhost:{server.getsockname()[1]}/", allow_networks=LOOPBACK, allow_http=True)
    with pytest.raises(TargetDown, match="No connection to"):
        deliver(target)

    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(TargetDown, match="cannot be resolved"):
        deliver(target)


def test_a_name_that_is_not_resolved_in_time_is_a_target_that_is_away(receiver, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: ended.wait(10))
    with pytest.raises(TargetDown, match="was not resolved within"):
        deliver(webhook(receiver), seconds=0.05)
    ended.set()


def test_a_receiver_that_drips_is_cut_off_at_the_deadline(receiver):
    stopped = threading.Event()

    def drip(request):
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000:
            request.wfile.write(bytes([byte]))
            if stopped.wait(0.02):
                return

    receiver.answer = drip
    began = time.monotonic()
    with pytest.raises(forward_http.Timeout):
        deliver(webhook(receiver), seconds=0.3)
    assert time.monotonic() - began < 5
    stopped.set()


def test_a_receiver_that_says_nothing_is_cut_off_and_one_that_hangs_up_is_away(receiver):
    ended = threading.Event()
    receiver.answer = lambda request: ended.wait(10)
    with pytest.raises(forward_http.Timeout):
        deliver(webhook(receiver), seconds=0.2)
    ended.set()
    receiver.answer = lambda request: None
    with pytest.raises(TargetDown):
        deliver(webhook(receiver))


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_"), [SECRET, (OLD_SECRET, DUE)]])
def test_the_signature_is_the_one_of_the_specifications_vector(monkeypatch, secret):
    """From standard-webhooks/standard-webhooks, libraries/python/tests/test_webhooks.py, test_sign_function."""
    at, target = datetime.fromtimestamp(1614265330, UTC), Webhook("https://example.com/", secret=secret)
    monkeypatch.setattr(webhook_module, "datetime", SimpleNamespace(now=lambda zone: at))
    signed = target._signature("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')
    assert (signed["webhook-id"], signed["webhook-timestamp"]) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330")
    assert signed["webhook-signature"].split()[0] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert len(signed["webhook-signature"].split()) == (2 if isinstance(secret, list) else 1)


# -- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_2xx_confirms(receiver, status):
    receiver.status = status
    deliver(webhook(receiver))


@pytest.mark.parametrize(
    "body", [b"[" * 4096, b"[" * 2000 + b"]" * 2000, b"\xff\x00", b"9" * 4096], ids=["cut off", "deep", "bytes", "long"]
)
def test_a_2xx_confirms_whatever_its_body_is(receiver, body):
    receiver.status, receiver.body = 200, body
    deliver(webhook(receiver))


@pytest.mark.parametrize(
    "body",
    [
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nx",
        b"Content-Length: 9\r\n\r\nok",
    ],
    ids=["chunks", "no chunk", "length"],
)
@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "cut off"])
def test_a_2xx_confirms_although_its_body_does_not_end(receiver, body, hangs):
    ended = threading.Event()

    def answer(request):
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + body)
        ended.wait(10 if hangs else 0)

    receiver.answer = answer
    deliver(webhook(receiver), seconds=0.3 if hangs else 5)
    ended.set()


def test_an_answer_counts_although_the_receiver_has_not_read_the_whole_message():
    """It refuses a message that is too large as soon as it has read the headers, and hangs up."""

    def answer(server):
        sock, _ = server.accept()
        with sock:
            sock.recv(1024)
            sock.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        with pytest.raises(Rejected, match="answered 413"):
            deliver(webhook(SimpleNamespace(port=server.getsockname()[1])), message(body="x" * 50_000_000))
        thread.join()


def test_interim_answers_are_skipped(receiver):
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    receiver.answer = lambda request: request.wfile.write(interim * 2 + b"HTTP/1.1 204 No Content\r\n\r\n")
    deliver(webhook(receiver))


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422, 431])
def test_a_message_that_is_refused_for_its_content_is_rejected(receiver, status):
    receiver.status, receiver.body = status, b'{"error": "no such order", "token": "s3cret"}'
    with pytest.raises(Rejected, match=f"answered {status}") as raised:
        deliver(webhook(receiver))
    assert "no such order" in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 429, 502, 503, 504])
def test_a_receiver_that_refuses_the_sender_or_is_away_is_down(receiver, status):
    receiver.status = status
    with pytest.raises(TargetDown, match=f"answered {status}") as raised:
        deliver(webhook(receiver))
    assert raised.value.retry_seconds is None


@pytest.mark.parametrize("status", [408, 500, 507])
def test_an_error_that_may_pass_fails_the_attempt(receiver, status):
    receiver.status = status
    with pytest.raises(Failed):
        deliver(webhook(receiver))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_refused(receiver, status):
    receiver.status, receiver.headers = status, {"Location": f"http://localhost:{receiver.port}/elsewhere"}
    with pytest.raises(TargetDown, match=r"a redirect to .*/elsewhere.*: refused"):
        deliver(webhook(receiver))
    assert [request.path for request in receiver.requests] == ["/hook?x=1"]


def test_the_secrets_of_a_redirect_are_hidden(receiver):
    receiver.status, receiver.headers = 302, {"Location": "https://ann:pw@login.example/?token=s3cret&order=1042"}
    with pytest.raises(TargetDown) as raised:
        deliver(webhook(receiver))
    assert "order=1042" in str(raised.value)
    assert "pw" not in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_retry_after_is_obeyed(receiver):
    receiver.status, receiver.headers = 503, {"Retry-After": "120"}
    with pytest.raises(TargetDown) as raised:
        deliver(webhook(receiver))
    assert raised.value.retry_seconds == 120


def test_retry_after_is_seconds_or_a_date():
    assert 55 < retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)) <= 60
    assert retry_after(format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)) == 0
    assert retry_after("9" * 400) == 3600
    assert [retry_after(value) for value in (None, "", "soon", "-1", "1.5")] == [None] * 5
    assert retry_after(f"Tue, 01 Jan {'9' * 30} 00:00:00 GMT") is None


def test_long_answers_are_shortened_and_secret_ones_hidden(receiver):
    receiver.status, receiver.body = 400, b"x" * 5_000_000
    with pytest.raises(Rejected) as raised:
        deliver(webhook(receiver))
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "body",
    [b"Your Authorization header was Basic c2VjcmV0", b"X-API-Key: c2VjcmV0", b"<accessKey>c2VjcmV0</accessKey>",
     b"https://ann:c2VjcmV0@shop.example/ is unknown", b"unknown: Bearer c2VjcmV0"],
)  # fmt: skip
def test_the_secrets_of_an_answer_that_is_not_json_are_hidden(receiver, body):
    receiver.status, receiver.body = 400, body
    with pytest.raises(Rejected) as raised:
        deliver(webhook(receiver))
    assert "c2VjcmV0" not in str(raised.value)


# -- declarations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://shop.example/", "the scheme of .* is 'http'; use https"),
        ("ftp://shop.example/", "use https"),
        ("file:///etc/passwd", "use https"),
        ("https://user:pass@shop.example/", "contains a user or a password"),
        ("https://@shop.example/", "contains a user or a password"),
        ("https:///path", "needs a host"),
        ("https://shop.example/#x", "no fragment"),
        ("https://shop.example:99999/", "not a URL"),
        ("https://shop.example/a b", "not a URL"),
        ("https://shop.example/\r\nX: y", "not a URL"),
        (None, "not a URL"),
    ],
)
def test_wrong_urls_are_refused(url, message):
    with pytest.raises(ValueError, match=message) as raised:
        Webhook(url)
    assert "pass@" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"secret": ""}, "a secret is a str"),
        ({"secret": "whsec_ä"}, "a secret is not base64"),
        ({"secret": "correct horse battery staple"}, "a secret is not base64.*token_bytes"),
        ({"secret": [SECRET, "my-secret!"]}, "a secret is not base64"),
        ({"secret": "whsec_" + "a-b_" * 8}, "a secret is URL-safe base64.*- and _"),
        ({"secret": "whsec_" + "abcd" * 5}, "a secret has 15 bytes; use at least 16"),
        ({"secret": [(SECRET, datetime(2020, 1, 1, tzinfo=UTC)), (OLD_SECRET, datetime(2021, 1, 1, tzinfo=UTC))]},
         "every secret has expired"),
        ({"secret": (SECRET, datetime(2020, 1, 1))}, "aware datetime"),  # noqa: DTZ001
        ({"secret": []}, "every secret has expired"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "5"}, "timeout is '5'"),
        ({"allow_networks": ["10.0.0.0/99"]}, "10.0.0.0/99"),
        ({"allow_networks": "10.0.0.0/8"}, "allow_networks is '10.0.0.0/8'; give a list"),
        ({"headers": {"X": "a\r\nb"}}, "not printable ASCII"),
        ({"headers": {"": "a"}}, "'' is not the name of a header"),
        ({"headers": {"a b:": "a"}}, "'a b:' is not the name of a header"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "the header 'Transfer-Encoding' is set by the client"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Webhook("https://shop.example/", **options)


def test_the_message_about_a_wrong_secret_says_how_to_make_one(capsys):
    with pytest.raises(ValueError, match="a secret is URL-safe base64") as raised:
        Webhook("https://shop.example/", secret=[SECRET, "a-very-secret_string"])
    assert "a-very-secret_string" not in str(raised.value)
    exec(str(raised.value).partition('python -c "')[2].removesuffix('"'))
    Webhook("https://shop.example/", secret=capsys.readouterr().out.strip())


def test_the_repr_of_a_webhook_shows_neither_query_nor_secret():
    assert repr(Webhook("https://shop.example/hook?token=1", secret=SECRET)) == "Webhook(https://shop.example/hook)"
