"""Malicious clients with and without a token against the real server: no 5xx, no traceback, no injection.

How bytes and headers are abused is in test_wire.py; what each field refuses, in tests/api.
"""

import http.client
import json
import random
import time
from decimal import Decimal
from urllib.parse import quote

import pytest
from django.urls import NoReverseMatch, reverse

from delaytasks import schedule
from delaytasks.api import urls
from delaytasks.api.models import Token
from delaytasks.api.queue_protocol.commands import COMMANDS
from delaytasks.api.serializers.fields import IntegerField, SecondsField
from delaytasks.api.serializers.requests import (
    HeldSerializer,
    NewJobTermsSerializer,
    ReleaseSerializer,
    RescheduleSerializer,
    ReserveSerializer,
)
from delaytasks.models import Job
from delaytasks.states import State
from tests.support.http_client import headers_of
from tests.support.process_usage import resident_mib
from tests.support.raw_http import exchange, request
from tests.support.servers import wait_until

ENVIRONMENT = {"API_MAX_WAIT_SECONDS": "0.1"}
SEED, MUTATIONS = 5, 300
GROWN_MIB = 64
QUICK_SECONDS = 5.0  # generous: machines that run tests are busy
HOSTILE = [
    "'); redis.call('FLUSHALL') --",
    'x"] = redis.call("FLUSHALL") --',
    "'; DROP TABLE delaytasks_job; --",
    "\" OR 1=1; --",
    "%", "_", "\\", "*", "{0}", "{0.__class__}", "%(key)s", "${jndi:ldap://evil}", "$(reboot)", "`reboot`",
    "<script>alert(1)</script>", '" onmouseover="alert(1)', "{{ 7*7 }}{% debug %}",
    "1:2:3", ":", "{hash}:due", "0:quick", "../../etc/passwd", "%00", "%0d%0aX-Evil: 1", "\\u0000", "a/b?c=d&e#f",
    "\u202eonmouseover\u202c", "\u200b\u2060x", "e\u0301", "\U0001f600" * 63, "\uffff", "\xa0x\xa0", "x" * 255,
]  # fmt: skip
REFUSED = [
    "", " ", "\t", "a\0b", "a\r\nX-Evil: 1", "\x1b[31m", "\x7f", "\x85", "\u2028", "\ud800", "\udfff\ud800", "x" * 256,
    "x" * 100_000,
]  # fmt: skip


def web(here):
    return next(process for process in here.processes if process.name == "web")


@pytest.fixture
def unharmed(here):
    """Check afterwards that the web process still runs, uses little memory and logged no error."""
    process = web(here)
    before = resident_mib(process.pid)
    yield
    assert process.popen.poll() is None
    assert resident_mib(process.pid) - before < GROWN_MIB
    said = process.log.read_text(errors="replace")
    assert "Internal Server Error" not in said
    assert "A request failed" not in said


@pytest.fixture
def line(here):
    """A persistent connection: line("POST", "jobs/", b"{}", token) returns (status, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=30)

    def ask(method, path, body=None, token=None):
        connection.request(method, f"/api/{path}", body, headers_of(token))
        answer = connection.getresponse()
        return answer.status, answer.read()

    yield ask
    connection.close()


# Noise


def valid(topic, job_id):
    """Return a valid request for every URL of the API: (method, URL, body or None)."""
    bodies = {
        "jobs": {"topic": topic, "key": "k", "delay_seconds": 60, "ttr_seconds": 30, "body": {"a": [1, "b", None]}},
        "reschedule": {"delay_seconds": 60, "reason": "why"}, "reserve": {"count": 1, "wait_seconds": 0.01},
        "release": {"attempt": 1, "delay_seconds": 1, "error": "it broke"}, "bury": {"attempt": 1, "reason": "why"},
        "finish": {"attempt": 1}, "touch": {"attempt": 1},
        "schedules": {"name": "nightly", "topic": topic, "cron": "0 3 * * *", "tz": "Europe/Berlin", "body": {"a": 1}},
        "backfill": {"first_at": "2031-05-01T00:00:00Z", "last_at": "2031-05-03T00:00:00Z"},
    }  # fmt: skip
    for pattern in urls.urlpatterns:
        view = pattern.callback.cls
        address = address_of(pattern.name, topic, job_id)
        for method in ("GET", "POST"):
            if hasattr(view, method.lower()) and pattern.name != "queue":
                yield method, address, bodies.get(pattern.name, {}) if method == "POST" else None
    bulk = {"jobs": [bodies["jobs"]], "on_conflict": "keep"}
    yield "POST", "/api/jobs/", bulk
    yield "GET", f"/api/jobs/?topic={topic}&state=delayed&key_prefix=k&due_from=2031-05-01T09:30:00Z&limit=5", None
    sent = {"topic": topic, "id": "k", "delay": 60, "TTR": 30, "body": {}, "count": 1, "wait": 0, "attempt": 1}
    for command, each in COMMANDS.items():
        yield (
            "POST",
            "/api/queue/",
            {"command": command} | {n: v for n, v in sent.items() if n in each.request().fields},
        )


def address_of(name, topic, job_id):
    for arguments in ({}, {"job_id": job_id}, {"topic": topic}, {"schedule": "nightly"}):
        try:
            return reverse(f"delaytasks_api:{name}", kwargs=arguments)
        except NoReverseMatch:
            continue
    raise AssertionError(name)


NUMBERS = ["1e400", "-1e400", "NaN", "Infinity", "-Infinity", "-0", "-0.0", "1e-400", str(2**31), str(2**63),
           str(-(2**63) - 1), "1" + "0" * 400, "1" + "0" * 5000, "0.1e1", "1E5", "01", "+1", "0x10", ".5"]  # fmt: skip


CONTENT_TYPES = ["text/plain", "multipart/form-data", "multipart/form-data; boundary=" + "b" * 200, "x", "",
                 "application/x-www-form-urlencoded", "application/json; charset=utf-16"]  # fmt: skip
HEADERS = ["Accept", "Accept-Language", "Cookie", "X-HTTP-Method-Override", "Content-Encoding", "X-CSRFToken",
           "X-Forwarded-For", "X-Forwarded-Proto", "If-None-Match", "Range", "Expect", "Origin", "Referer"]  # fmt: skip


class Mutator:
    """Mutate requests; the same seed gives the same mutations."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def bytes_of(self, method, address, body, token):
        text = b"" if body is None else self.text(body)
        lines = []
        if self.random.random() < 0.25:
            address = self.address(address)
        if self.random.random() < 0.15:
            method = self.random.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"])
        if self.random.random() < 0.25:
            lines.append(self.line())
        return request(method, address, *lines, body=text, token=token)

    def text(self, body):
        for _ in range(self.random.randint(0, 2)):
            body = self.spoilt(body)
        text = json.dumps(body).encode()
        match self.random.randrange(5):
            case 0:  # some bytes are others
                spoilt = bytearray(text)
                for _ in range(self.random.randint(1, 4)):
                    place = self.random.randrange(len(spoilt) + 1)
                    spoilt[place : place + self.random.randint(0, 3)] = self.random.randbytes(self.random.randint(0, 3))
                return bytes(spoilt)
            case 1:
                return text[: self.random.randrange(len(text))]
            case 2:  # the same keys again, with other values
                return text[:-1] + b"," + json.dumps(self.spoilt(body)).encode()[1:] if text.endswith(b"}") else text
            case 3:
                number = self.random.choice(NUMBERS).encode()
                return text.replace(self.random.choice([b"1", b"60", b"30", b"0"]), number, 1)
        return text

    def spoilt(self, value):
        """The JSON with one thing in it that is something else."""
        if isinstance(value, dict) and value and self.random.random() < 0.8:
            key = self.random.choice(sorted(value, key=str))
            match self.random.randrange(6):
                case 0:
                    return {name: each for name, each in value.items() if name != key}
                case 1:
                    return value | {self.random.choice(HOSTILE + REFUSED): 1}
                case _:
                    return value | {key: self.spoilt(value[key])}
        if isinstance(value, list) and value and self.random.random() < 0.5:
            return [self.spoilt(value[0]), *value[1:]] * self.random.choice([1, 2, 1001])
        others = [None, True, -1, 2**63, 1e308, [], {}, [[[]]], "", {"a": {"b": {}}}, [value], str(value), 0.5]
        return self.random.choice([*others, *HOSTILE, *REFUSED])

    def address(self, address):
        parts = address.split("/")
        place = self.random.randrange(1, len(parts))
        other = self.random.choice([*HOSTILE, "-1", "0", str(2**63), "9" * 400, "..", "%2e%2e", "%252e", "%ff", "1e9"])
        parts[place] = quote(other, safe="%/") if self.random.random() < 0.7 else parts[place] * 20
        names = ["topic", "state", "limit", "cursor", "due_from", "key_prefix", "token", "format", "page", "_method"]
        query = "&".join(
            f"{self.random.choice(names)}={quote(self.random.choice(HOSTILE))}"
            for _ in range(self.random.randint(0, 4))
        )
        return "/".join(parts) + ("&" if "?" in address else "?") + query

    def line(self):
        text = "".join(chr(self.random.choice([*range(0x20, 0x7F), *range(0xA1, 0x100)])) for _ in range(60))
        octal = r"\000\377" * 8
        others = [f"Content-Type: {other}" for other in CONTENT_TYPES] + [f"{name}: {text}" for name in HEADERS]
        return self.random.choice([*others, f'Cookie: sessionid="{octal}"; csrftoken=x; django_language=../x'])


@pytest.mark.parametrize("known", [False, True], ids=["anonymous", "with every right"])
def test_every_request_is_answered_without_a_server_error(here, api, topic, unharmed, known):
    mutator = Mutator(f"{SEED} {known}")
    job = schedule(topic, key="fuzzed", delay=3600)
    requests = list(valid(topic, job.pk))
    assert len({(method, address) for method, address, _body in requests}) > 20
    seen = set()
    for number in range(MUTATIONS):
        data = mutator.bytes_of(*requests[number % len(requests)], api.token if known else None)
        reply = exchange(here.port, data)
        seen.add(reply.status)
        assert reply.status in range(200, 500) or reply.status == 503, (data, reply)
        assert b"Traceback" not in reply.body
    assert seen >= ({200, 400, 404, 405} if known else {200, 401})
    assert known or not Job.objects.exclude(pk=job.pk).filter(topic=topic).exists()


# Texts


def test_key_is_never_interpreted(here, api, topic, unharmed):
    """The key is scheduled, mirrored, reserved, released with an error and cancelled; and run by a worker."""
    with here.redis.client() as redis:
        redis.set("stays", 1)
        made, done = {}, {}
        for key in HOSTILE:
            terms = {"key": key, "delay_seconds": 0, "body": {key: [key]}}
            made[key], done[key] = (api.post("jobs/", {"topic": name, **terms}) for name in (topic, "quick"))
            assert (made[key].status, made[key].data["key"]) == (201, key)
            assert (done[key].status, done[key].data["key"]) == (201, key)

        held = {}
        while len(held) < len(HOSTILE):
            found = wait_until(lambda: api.reserve(topic, count=200), seconds=15, what="the jobs to be ready")
            held |= {each["key"]: each for each in found}
        for key in HOSTILE:
            number = made[key].data["id"]
            assert (held[key]["id"], held[key]["body"]) == (number, {key: [key]})
            assert api.post(f"jobs/{number}/release/", {"attempt": 1, "error": key}).status == 200
            found = api.get(f"jobs/?topic={topic}&key_prefix={quote(key, safe='')}").data["results"]
            assert {each["key"] for each in found} == {each for each in HOSTILE if each.startswith(key)}
            assert key.strip() in [each["error"] for each in found]
        for key in HOSTILE:
            assert api.command("delete", id=key, topic=topic, reason=key)["success"]

        numbers = [each.data["id"] for each in done.values()]
        ended = Job.objects.filter(pk__in=numbers, state=State.FINISHED)
        wait_until(lambda: ended.count() == len(HOSTILE), seconds=15, what="the worker to finish them")
        effects = sorted(effect.key for effect in here.effects("quick") if effect.job_id in numbers)
        assert effects == sorted(HOSTILE)
        assert redis.get("stays") == "1"


@pytest.mark.parametrize("text", [each for each in HOSTILE if each not in "%_"], ids=lambda text: ascii(text)[:24])
def test_invalid_topic_name_is_refused(api, line, unharmed, text):
    for path, sent in (
        ("jobs/", {"topic": text, "key": "k", "delay_seconds": 0}),
        ("queue/", {"command": "add", "topic": text, "id": "k", "delay": 0, "TTR": 1, "body": 1}),
        ("queue/", {"command": "pop", "topic": text}),
    ):
        assert line("POST", path, json.dumps(sent), api.token)[0] == 400
    assert line("POST", f"topics/{quote(text, safe='')}/reserve/", "{}", api.token)[0] == 404 or text == "x" * 255
    assert line("GET", f"jobs/?topic={quote(text, safe='')}", None, api.token)[0] == 400


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text)[:24])
def test_unprintable_or_long_key_is_refused(api, topic, line, unharmed, text):
    sent = [
        ("jobs/", {"topic": topic, "key": text, "delay_seconds": 0}),
        ("jobs/", {"jobs": [{"topic": topic, "key": text, "delay_seconds": 0}]}),
        ("queue/", {"command": "add", "topic": topic, "id": text, "delay": 0, "TTR": 1, "body": 1}),
        ("queue/", {"command": "peek", "id": text}),
    ]
    for path, data in sent:
        status, answer = line("POST", path, json.dumps(data), api.token)
        assert status == 400, answer
        if path == "jobs/":  # the queue's envelope has the id that was sent
            assert len(answer) < 2000, "what was wrong is not sent back as a whole"
    assert not Job.objects.filter(topic=topic).exists()


def test_prefix_is_not_a_pattern(api, topic):
    schedule(topic, key="order:1", delay=3600)
    for prefix in ("%", "_", "%25", "order_", "o%1", "\\", "*", "^o", "(", "[a-z]"):
        assert api.get(f"jobs/?topic={topic}&key_prefix={quote(prefix, safe='')}").data["results"] == []


# Numbers and shapes


def numeric_fields(serializer):
    return [name for name, field in serializer().fields.items() if isinstance(field, SecondsField | IntegerField)]


def with_numbers(topic, job_id):
    """Yield (URL, body, name of a numeric field) for every numeric field of the API."""
    new = {"topic": topic, "key": "n", "delay_seconds": 1}
    for name in numeric_fields(NewJobTermsSerializer):
        yield "jobs/", {**new, name: 1}, name
    for verb, serializer, more in (
        ("reschedule", RescheduleSerializer, {}), ("release", ReleaseSerializer, {"attempt": 1}),
        *((verb, HeldSerializer, {}) for verb in ("finish", "touch", "bury")),
    ):  # fmt: skip
        for name in numeric_fields(serializer):
            yield f"jobs/{job_id}/{verb}/", {**more, name: 1}, name
    for name in numeric_fields(ReserveSerializer):
        yield f"topics/{topic}/reserve/", {name: 1}, name
    sent = {"topic": topic, "id": "n", "delay": 1, "TTR": 1, "body": 1}
    for command, each in COMMANDS.items():
        fields = each.request().fields
        needed = {name: value for name, value in sent.items() if name in fields and fields[name].required}
        for name in numeric_fields(each.request):
            yield "queue/", {"command": command, **needed, name: 1}, name


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:12])
def test_number_is_accepted_exactly_or_refused_by_name(api, topic, line, unharmed, number):
    job = schedule(topic, key="held", delay=3600)
    fields = list(with_numbers(topic, job.pk))
    assert len({name for _path, _body, name in fields}) >= 9
    for path, body, name in fields:
        text = json.dumps({**body, name: "HERE"}).replace('"HERE"', number)
        status, answer = line("POST", path, text, api.token)
        assert status in (200, 201, 400, 409), answer
        if number not in ("-0", "-0.0", "1e-400", "0.1e1", "1E5", str(2**31)):
            assert status == 400, (path, name, answer)
    due = Job.objects.filter(topic=topic).values_list("due_at", "ttr_ms", "attempt")
    assert all(ttr_ms > 0 and attempt < 3 for _due, ttr_ms, attempt in due)


@pytest.mark.parametrize("number", ["-0", "1e-400", str(2**63), "1" + "0" * 400, "1.7976931348623157e308", "1E5"])
def test_number_in_a_body_is_returned_unchanged(api, topic, line, number):
    """To the precision of a Python float; PostgreSQL writes all digits of a large number."""
    text = f'{{"topic":"{topic}","key":"n","delay_seconds":9,"body":{{"n":{number}}}}}'
    status, made = line("POST", "jobs/", text, api.token)
    assert status == 201, made
    read = line("GET", f"jobs/{json.loads(made)['id']}/", None, api.token)[1]
    for answer in (made, read):
        body = json.loads(answer, parse_int=Decimal, parse_float=Decimal)["body"]
        assert body == {"n": Decimal(repr(json.loads(number)))}


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_a_hundred_thousand_brackets_are_refused(api, topic, line, unharmed, opening):
    for text in (opening * 100_000, f'{{"topic":"{topic}","key":"k","delay_seconds":1,"body":{opening * 100_000}'):
        for path in ("jobs/", "queue/"):
            assert line("POST", path, text, api.token)[0] in (400, 413)  # 413: too long even before it is too deep
            assert line("POST", path, text)[0] == 401


def test_unclosed_quotes_are_refused_quickly(api, line, unharmed):
    """Nesting is counted in one pass; a regular expression that backtracks at each quote would take minutes."""
    began = time.monotonic()
    assert line("POST", "queue/", b"[" * 101 + rb"\"" * 40_000, api.token)[0] == 400
    assert time.monotonic() - began < QUICK_SECONDS


def test_duplicate_json_key_has_one_value_for_check_and_use(api, topic, line):
    """A job is created only in the topic for which the permission was checked."""
    text = f'{{"topic":"{topic}","topic":"quick","key":"a","key":"twice","delay_seconds":60,"delay_seconds":3600}}'
    status, answer = line("POST", "jobs/", text, api.token)
    assert status == 201
    assert (json.loads(answer)["topic"], json.loads(answer)["key"]) == ("quick", "twice")
    assert not Job.objects.filter(topic=topic).exists()


def test_permission_is_checked_for_the_used_value_of_a_duplicate_key(here, topic, make_token, line):
    token = make_token({topic: {"produce": True}})
    for first, second, status in ((topic, "quick", 403), ("quick", topic, 201)):
        text = f'{{"topic":"{first}","topic":"{second}","key":"{first}","delay_seconds":60}}'
        assert line("POST", "jobs/", text, token)[0] == status
    assert not Job.objects.filter(topic="quick", key=topic).exists()


def test_too_many_parameters_are_refused(api, line, unharmed):
    query = "&".join(f"a{n}=1" for n in range(1500))
    for path in ("jobs/", "topics/", "health/"):
        status, _ = line("GET", f"{path}?{query}", None, api.token)
        assert status == (400 if path == "jobs/" else 200)


# Tokens


def test_only_the_complete_secret_is_accepted(here, api, line):
    prefix, _, secret = api.token.partition(".")
    others = [prefix, f"{prefix}.", f"{prefix}.{'x' * len(secret)}", f"{prefix}.{secret[:-1]}", f"{prefix}.{secret}x",
              f"{prefix}.{secret.swapcase()}", f".{secret}", secret, f"{prefix}%00.{secret}", f"{prefix}' OR '1'='1",
              "null", "undefined", "x" * 7000]  # fmt: skip
    for other in others:
        assert line("GET", "jobs/", None, other)[0] == 401, other
        assert line("POST", "queue/", b'{"command": "pop", "topic": "quick"}', other)[0] == 401, other
    assert line("GET", "jobs/", None, api.token)[0] == 200


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "apikey", "key", "Authorization", "auth"])
def test_secret_in_a_url_is_not_accepted(api, line, name):
    """URLs appear in logs."""
    for value in (api.token, quote(f"Bearer {api.token}")):
        assert line("GET", f"jobs/?{name}={value}")[0] == 401
        assert line("POST", f"queue/?{name}={value}", json.dumps({"command": "peek", name: api.token}))[0] == 401


def test_revoked_token_is_refused_from_the_next_request(here, api, line):
    assert line("GET", "jobs/", None, api.token)[0] == 200
    Token.objects.filter(prefix=api.token.partition(".")[0]).update(revoked=True)
    assert line("GET", "jobs/", None, api.token)[0] == 401
