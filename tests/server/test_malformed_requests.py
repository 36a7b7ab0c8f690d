"""Malformed bytes sent to the real server: each request is refused without effect on other clients."""

import contextlib
import select
import time

import pytest
from django.contrib.auth.models import User

from delaytasks.api.middleware import DISCARDED_BYTES
from tests.support.process_usage import resident_mib
from tests.support.raw_http import PATIENCE_SECONDS, connect, exchange, parsed, receive, request

ENVIRONMENT = {"API_MAX_WAIT_SECONDS": "0.1"}
SLOW = 60  # connections that send a byte now and then; each is an open file of the web process and no thread
HALF_SENT, HALF_BYTES = 100, 1_000_000  # of each connection
QUICK_SECONDS = 5.0  # generous: machines that run tests are busy
SERVER_TAKES = 16 * 1024 * 1024  # project/asgi.py
SMUGGLED = b"GET /api/health/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
EVIL = "x-evil"


def web(here):
    return next(process for process in here.processes if process.name == "web")


def post(body, *, keep=False, **lines):
    """Build a POST request with these header lines and body; with `keep` on a persistent connection."""
    named = [f"{name.replace('_', '-')}: {value}" for name, value in lines.items()]
    data = request("POST", "/api/queue/", *named, body=body)
    return data.replace(b"Connection: close\r\n", b"") if keep else data


# Where one request ends and the next begins


@pytest.mark.parametrize("keep", [False, True], ids=["closing", "keeping the connection"])
@pytest.mark.parametrize(
    "data",
    [
        {"body": b"0\r\n\r\n" + SMUGGLED, "Content_Length": 5 + len(SMUGGLED), "Transfer_Encoding": "chunked"},
        {"body": b"0\r\n\r\n" + SMUGGLED, "Content_Length": 4, "Transfer_Encoding": "chunked"},
        {"body": b"0\r\n\r\n" + SMUGGLED, "Transfer_Encoding": "chunked", "transfer_encoding": "identity"},
        {"body": b"0\r\n\r\n" + SMUGGLED, "Transfer_Encoding": "xchunked"},
        {"body": b"0\r\n\r\n" + SMUGGLED, "Transfer_Encoding": "chunked, identity"},
        {"body": b"0\r\n\r\n" + SMUGGLED, "Transfer_Encoding": "\x0bchunked"},
        {"body": b"hello" + SMUGGLED, "Content_Length": 5, "content_length": 6},
        {"body": b"hello" + SMUGGLED, "Content_Length": "5, 6"},
        {"body": b"hello" + SMUGGLED, "Content_Length": "+5"},
        {"body": b"hello" + SMUGGLED, "Content_Length": "-1"},
        {"body": b"hello" + SMUGGLED, "Content_Length": "0x5"},
        {"body": b"hello" + SMUGGLED, "Content_Length": "9" * 5000},
    ],
    ids=lambda data: " ".join(f"{name}={str(value)[:20]}" for name, value in data.items() if name != "body"),
)
def test_body_with_an_ambiguous_length_is_refused_and_nothing_after_it_is_read(here, data, keep):
    reply = exchange(here.port, post(**data, keep=keep))

    assert reply.status == 400
    assert reply.answers == 1, reply.raw


@pytest.mark.parametrize(
    "chunks",
    [b"ZZ\r\n", b"-1\r\nx\r\n0\r\n\r\n", b"F" * 30 + b"\r\n", b"5\r\nhelloXX0\r\n\r\n", b"\r\n\r\n",
     b"5;" + b"x" * 100_000 + b"\r\nhello\r\n0\r\n\r\n", b"0\r\n" + b"X: y\r\n" * 50_000 + b"\r\n"],
    ids=lambda chunks: repr(chunks[:16]),
)  # fmt: skip
def test_invalid_chunks_are_refused(here, chunks):
    reply = exchange(here.port, post(chunks, Transfer_Encoding="chunked"))

    assert 400 <= reply.status < 500
    assert reply.answers == 1


@pytest.mark.parametrize(
    "data",
    [b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET /api/health/\r\n\r\n", b"\0" * 5000 + b"\r\n\r\n",
     b"GET /api/health/ HTTP/1.1\r\nConnection: close\r\n\r\n",
     b"GET /api/health/ HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
     b"GET /api/health/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\rX-Evil: 1\r\n\r\n",
     b"GET /api/health/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n",
     b"GET /api/health/ HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
     b"GET /api/health/ HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 50_000 + b"\r\n"],
    ids=lambda data: repr(data[-40:]),
)  # fmt: skip
def test_invalid_http_is_refused(here, data):
    assert exchange(here.port, data).status == 400


def test_size_of_headers_is_limited(here):
    for line in ("X: " + "a" * 30_000, "\r\n".join(f"X{n}: a" for n in range(2000))):
        assert exchange(here.port, request("GET", "/api/health/", line)).status == 200

    with connect(here.port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                connection.sendall(b"X: " + b"a" * 10_000 + b"\r\n")
        assert receive(connection).status in (400, 0)  # 0: it was not interested in the rest, and hung up


@pytest.mark.parametrize("size", [600_000, 3_000_000, SERVER_TAKES + 1_000_000])
def test_a_client_that_sends_everything_before_it_reads_sees_the_refusal(here, size):
    """A connection closed with unread data is reset; then the client has a broken pipe instead of the response."""
    data = post(b"[" * size)
    head = len(data) - size
    with connect(here.port) as connection:
        connection.sendall(data[: head + 1000])
        readable, _, _ = select.select([connection], [], [], PATIENCE_SECONDS)
        assert readable, "the server answers before it has the body"
        connection.sendall(data[head + 1000 : head + DISCARDED_BYTES])
        reply = receive(connection)

    assert reply.status == (413 if size > SERVER_TAKES else 401)
    assert reply.headers["connection"] == "close"


# Names and addresses


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1@evil.example", "127.0.0.1, evil.example", "[::1]evil", "a/b", "127.0.0.1:evil",
     "127.0.0.1.evil.example", ".127.0.0.1", "x" * 5000, " "],
    ids=lambda host: host[:24],
)  # fmt: skip
def test_unknown_host_header_is_refused(here, host):
    for path in ("/", "/api/health/", "/admin/login/"):
        reply = exchange(here.port, request("GET", path, host=host))
        assert reply.status == 400
        assert b"evil" not in reply.body


def test_forwarded_host_header_is_ignored(here):
    lines = ["X-Forwarded-Host: evil.example", "X-Forwarded-Server: evil.example", "Forwarded: host=evil.example"]
    for path in ("/", "/admin/", "/i18n/setlang", "/admin"):
        assert b"evil" not in exchange(here.port, request("GET", path, *lines)).raw


@pytest.mark.parametrize(
    "target",
    ["http://evil.example/api/health/", "http://127.0.0.1/api/health/", "//evil.example/admin", "/\\evil.example/admin",
     "//evil.example/%2e%2e", "*", "http://", "/%2e%2e/%2e%2e/etc/passwd", "/%ff%fe", "/" + "a" * 50_000,
     "/admin%0d%0aX-Evil:%201", "/%2561dmin/"],
    ids=lambda target: target[:32],
)  # fmt: skip
def test_unknown_url_is_not_found_and_not_redirected(here, target):
    reply = exchange(here.port, request("GET", target))

    assert reply.status == 404
    assert "location" not in reply.headers
    assert EVIL not in reply.headers


@pytest.mark.parametrize(
    "name",
    ["../settings.py", "%2e%2e/settings.py", "..%2f..%2f..%2fetc/passwd", "%252e%252e/%252e%252e/etc/passwd",
     "/etc/passwd", "delaytasks/../../project/settings.py", "delaytasks\\..\\..\\settings.py",
     "....//....//etc/passwd", "delaytasks/", "", "delaytasks/admin.css/../../../manage.py", "%c0%ae%c0%ae/x"],
)  # fmt: skip
def test_static_files_do_not_allow_path_traversal(here, name):
    assert exchange(here.port, request("GET", f"/static/{name}")).status == 404


@pytest.mark.parametrize("method", ["BREW", "TRACE", "CONNECT", "PROPFIND", "POST ", "X" * 5000, "DELETE", "PUT"])
def test_unsupported_method_is_refused(here, api, method):
    for path in ("/api/jobs/", "/api/health/", "/static/delaytasks/admin.css", "/now/", "/orders/"):
        assert 400 <= exchange(here.port, request(method, path, token=api.token)).status < 500


# A NUL, which no text of ours has, and PostgreSQL cannot be asked about


@pytest.mark.parametrize(
    ("target", "status"),
    [("/admin/delaytasks/topic/%00/change/", 400), ("/admin/delaytasks/bulkchange/?state__exact=%00", 400),
     ("/now/?since=%00", 400), ("/%00", 400), ("/api/topics/a%00/", 404), ("/api/jobs/?key_prefix=%00", 400),
     ("/api/jobs/?topic=%00", 400), ("/api/jobs/?%00=1", 400), ("/api/%00", 404)],
)  # fmt: skip
def test_nul_in_a_url_is_refused_as_a_problem_document(here, api, target, status):
    reply = exchange(here.port, request("GET", target, token=api.token if "api" in target else None))

    assert reply.status == status
    assert (reply.headers["content-type"] == "application/problem+json") == target.startswith("/api/")


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/now/", 200), ("/admin/", 302), ("/api/jobs/", 401)])
@pytest.mark.parametrize("name", ["sessionid", "csrftoken", "messages", "django_language", "delaytasks_zone"])
def test_cookie_with_a_nul_is_ignored(here, path, status, name):
    escaped = r"\000" * 32
    assert exchange(here.port, request("GET", path, f'Cookie: a=b; {name}="{escaped}"')).status == status


# What we echo


@pytest.mark.parametrize("hostile", ["a%0d%0aX-Evil:%201", "a%0aX-Evil:%201", "a%E5%98%8D%E5%98%8AX-Evil:1", "%0d"])
def test_echoed_input_cannot_inject_a_header(here, api, hostile):
    paths = [f"/api/jobs/?key_prefix={hostile}", f"/api/topics/{hostile}/", f"/admin/{hostile}", f"/?keep={hostile}"]
    paths += [f"/admin/login/?next={hostile}", f"/admin/{hostile}/", f"/i18n/setlang?next={hostile}", f"/{hostile}"]
    for path in paths:
        reply = exchange(here.port, request("GET", path, token=api.token if "api" in path else None))
        assert reply.status < 500
        assert EVIL not in reply.headers
        assert reply.answers == 1
    form = f"language=en&next=/{hostile}".encode()
    lines = ["Content-Type: application/x-www-form-urlencoded", "Referer: http://127.0.0.1/a\x0bX-Evil: 1"]
    assert EVIL not in exchange(here.port, request("POST", "/i18n/setlang/", *lines, body=form)).headers


# Slow, and without end


def test_slow_client_does_not_block_others(here, api):
    process = web(here)
    body = b'{"command": "peek", "topic": "quick"}'
    data = request("POST", "/api/queue/", body=body, token=api.token)
    slow = [connect(here.port) for _ in range(SLOW)]
    try:
        for number, connection in enumerate(slow):  # half of them in the middle of their headers
            connection.sendall(data[: -len(body)] if number % 2 else data[:40])
        sent = [len(data) - len(body) if number % 2 else 40 for number in range(SLOW)]
        for _ in range(10):
            for number, connection in enumerate(slow):
                connection.sendall(data[sent[number] : sent[number] + 1])
                sent[number] += 1
            began = time.monotonic()
            assert api.get("topics/quick/").status == 200
            assert time.monotonic() - began < QUICK_SECONDS
        assert process.popen.poll() is None
        for number, connection in enumerate(slow):
            connection.sendall(data[sent[number] :])
        assert {receive(connection).status for connection in slow} == {200}
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.parametrize("known", [False, True], ids=["anonymous", "with a token"])
def test_endless_body_is_refused_at_the_servers_limit_and_not_held_in_memory(here, api, known):
    process = web(here)
    before = resident_mib(process.pid)
    for _ in range(3):
        taken = 0
        with connect(here.port) as connection:
            token = api.token if known else None
            connection.sendall(request("POST", "/api/jobs/", "Transfer-Encoding: chunked", token=token))
            with contextlib.suppress(ConnectionError):
                while taken < 10 * SERVER_TAKES:
                    taken += 65536
                    connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            # A stranger is told before the limit is reached, unless it sends that fast. 0: it hung up while we talked.
            assert receive(connection).status in ((413, 0) if known else (401, 413, 0))
        assert taken < 2 * SERVER_TAKES, "the rest is not even taken in"
    assert resident_mib(process.pid) - before < 64


@pytest.mark.parametrize("who", ["anonymous", "with an invented session", "with a token"])
def test_half_sent_bodies_are_not_held_in_memory(here, api, who):
    process, before = web(here), resident_mib(web(here).pid)
    lines = [f"Content-Length: {4 * HALF_BYTES}", "Content-Type: application/json"]
    lines += ["Cookie: sessionid=invented"] if who == "with an invented session" else []
    data = request("POST", "/api/jobs/", *lines, token=api.token if who == "with a token" else None)
    with contextlib.ExitStack() as open_connections:
        for _ in range(HALF_SENT):
            connection = open_connections.enter_context(connect(here.port))
            with contextlib.suppress(ConnectionError):  # a stranger is told before the body, and hung up on
                connection.sendall(data + b"x" * HALF_BYTES)
        assert api.get("topics/quick/").status == 200
        assert resident_mib(process.pid) - before < 32


@pytest.mark.parametrize("known", [False, True], ids=["anonymous", "with a token"])
def test_body_of_ten_megabytes_is_refused(here, api, known):
    process, before = web(here), resident_mib(web(here).pid)
    body = b'{"body": "' + b"x" * 10_000_000 + b'"}'
    for _ in range(3):
        reply = exchange(here.port, request("POST", "/api/jobs/", body=body, token=api.token if known else None))
        assert reply.status == (413 if known else 401)
    assert resident_mib(process.pid) - before < 64


def test_incomplete_body_logs_no_error(here, api, topic):
    data = request("POST", "/api/jobs/", "Content-Length: 1000", body=b'{"topic": ', token=api.token)
    with connect(here.port) as connection:
        connection.sendall(data)

    assert api.get(f"topics/{topic}/").status == 200
    assert "Internal Server Error" not in web(here).log.read_text()


# Headers of our own


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/now/", 200), ("/admin/login/", 200), ("/admin/", 302), ("/nowhere/", 404), ("/api/health/", 200),
     ("/api/jobs/", 401), ("/api/nowhere/", 401), ("/static/delaytasks/admin.css", 200)],
)  # fmt: skip
def test_every_response_has_security_headers(here, path, status):
    reply = exchange(here.port, request("GET", path))

    assert reply.status == status
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "same-origin"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    if not path.startswith("/static/"):
        assert reply.headers["x-frame-options"] == "DENY"
    assert "server" not in reply.headers


def test_server_refusals_have_nosniff_too(here):
    for lines in (["Content-Length: 99999999"], ["Content-Length: 1", "Transfer-Encoding: chunked"]):
        reply = exchange(here.port, request("POST", "/api/jobs/", *lines))
        assert reply.status in (400, 413)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["connection"] == "close"


def test_api_answers_json_whatever_accept_says(here, api):
    for path in ("/api/jobs/", "/api/topics/", "/api/nowhere/", "/api/jobs/1/"):
        for token in (api.token, None):
            reply = exchange(here.port, request("GET", path, "Accept: text/html,*/*;q=0.1", token=token))
            assert reply.headers["content-type"] in ("application/json", "application/problem+json")
            assert reply.headers["x-content-type-options"] == "nosniff"


def test_cookies_are_same_site_and_http_only(here, settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]  # as the server has it
    User.objects.create_superuser("cookies", password="monster")
    page = exchange(here.port, request("GET", "/admin/login/"))
    token = page.body.partition(b'name="csrfmiddlewaretoken" value="')[2][:64].decode()
    lines = [
        "Content-Type: application/x-www-form-urlencoded",
        f"Cookie: {page.headers['set-cookie'].partition(';')[0]}",
    ]

    def send(path, fields):
        form = f"csrfmiddlewaretoken={token}&{fields}".encode()
        return exchange(here.port, request("POST", path, *lines, body=form))

    signed_in = send("/admin/login/", "username=cookies&password=monster")
    chosen = send("/i18n/setlang/", "language=en")

    assert signed_in.status == chosen.status == 302
    set_cookies = [
        line.decode()
        for reply in (page, signed_in, chosen)
        for line in reply.raw.split(b"\r\n\r\n")[0].split(b"\r\n")
        if line.lower().startswith(b"set-cookie:")
    ]
    assert {line.split()[1].partition("=")[0] for line in set_cookies} == {"csrftoken", "sessionid", "django_language"}
    for line in set_cookies:
        assert "SameSite=Lax" in line
        assert ("HttpOnly" in line) == ("csrftoken" not in line)  # the page of the API's documents has to read that one


def test_parser_distinguishes_a_response_from_none():
    assert parsed(b"").status == 0
    assert parsed(b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n").headers == {"a": "b"}
