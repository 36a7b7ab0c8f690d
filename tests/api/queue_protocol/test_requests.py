"""Malformed requests: each gets HTTP 400 and an error that names the field."""

import gzip
from collections.abc import Callable
from typing import Any

import pytest

from delaytasks.api.queue_protocol.commands import COMMANDS
from delaytasks.models import Job

from .conftest import QueueClient

pytestmark = pytest.mark.on_both  # values that a database refuses must not reach it

VALID = {
    "add": {"topic": "mail.send", "id": "mail:1", "delay": 0, "TTR": 60, "body": {}},
    "pop": {"topic": "mail.send"},
    "finish": {"id": "mail:1"},
    "delete": {"id": "mail:1"},
    "touch": {"id": "mail:1"},
    "release": {"id": "mail:1"},
    "bury": {"id": "mail:1"},
    "peek": {"id": "mail:1"},
}
LONG = "x" * 256
BAD_NUMBERS: list[Any] = ["30", "", True, False, None, [], [30], {}, -1, -0.001]
BAD_TEXTS: list[Any] = [1, 0, True, None, [], ["x"], {}]
BAD: dict[str, list[Any]] = {
    "topic": [*BAD_TEXTS, "", " ", "mail send", "-mail", "mail/send", "x" * 101, "mail.send\n", "mäil"],
    "id": [*BAD_TEXTS, "", "  ", LONG, "a\nb", "a\u0000b", "\u2028"],
    "delay": [*BAD_NUMBERS, 10**10, 1e300],
    "TTR": [*BAD_NUMBERS, 0, 0.0, 1e-9, 604_801, 10**400],
    "expires": [*BAD_NUMBERS, 0, 1e-9, 31_622_401, 10**400],
    "priority": [*BAD_NUMBERS, -1, 10, 0.5],
    "on_conflict": [*BAD_TEXTS, "", "Reject", "ignore"],
    "count": [*BAD_NUMBERS, 0, 1.5, 201, 10**30],
    "wait": [*BAD_NUMBERS, 60.001, 3600],
    "consumer": [*BAD_TEXTS, "x" * 101, "a\nb", "a\u0000"],
    "attempt": [*BAD_NUMBERS, 0, 1.5, 2**31, 10**30],
    "job": [*BAD_NUMBERS, 0, 1.5, 10**30],
    "receipt": [*BAD_TEXTS, "x" * 33, "a\nb"],
    "error": [*BAD_TEXTS, "x" * 10_001, "a\u0000b"],
    "reason": [*BAD_TEXTS, "x" * 10_001, "a\u0000b"],
}


def fields_of(command: str) -> dict[str, Any]:
    """Return the fields of a command, and whether each is required."""
    fields = COMMANDS[command].request().fields
    return {name: field.required for name, field in fields.items() if name != "command"}


def test_commands_are_those_of_the_protocol() -> None:
    assert set(COMMANDS) == VALID.keys()


REQUIRED = [(c, f) for c in VALID for f, required in fields_of(c).items() if required]


@pytest.mark.parametrize(("command", "field"), REQUIRED)
def test_a_missing_field_is_named(queue: QueueClient, command: str, field: str) -> None:
    fields = {name: value for name, value in VALID[command].items() if name != field}
    refused = queue.refused(400, command, **fields)
    assert refused["error"].startswith(f"{field} is missing: {command} requires ")
    assert refused["id"] == fields.get("id", "")
    assert refused["value"] is None
    assert not Job.objects.exists()


def test_add_without_delay_is_refused_with_this_message(queue: QueueClient) -> None:
    refused = queue.refused(400, "add", topic="mail.send", id="mail:1", TTR=60, body={})
    assert refused == {
        "success": False, "id": "mail:1", "value": None,
        "error": "delay is missing: add requires topic, id, delay, TTR, body. "
        "Optional: on_conflict, expires, priority.",
    }  # fmt: skip


def test_every_missing_field_is_named(queue: QueueClient) -> None:
    error = queue.refused(400, "add", topic="mail.send", id="mail:1")["error"]
    assert all(f"{field} is missing" in error for field in ("delay", "TTR", "body"))


def test_peek_needs_an_id_or_a_topic(queue: QueueClient) -> None:
    assert queue.refused(400, "peek")["error"].startswith("id is missing: ")


CHECKED = [(c, f) for c in VALID for f in fields_of(c) if f != "body"]


@pytest.mark.parametrize(("command", "field"), CHECKED)
def test_a_value_of_a_wrong_type_or_out_of_range_is_refused_and_its_field_named(
    queue: QueueClient, command: str, field: str
) -> None:
    for value in BAD[field]:
        sent = VALID[command] | {field: value}
        refused = queue.refused(400, command, **sent)
        assert refused["error"].startswith((f"{field}: ", f"{field} is ", f"{field} '"))
        assert field != "id" or "key" not in refused["error"]
        assert refused["value"] is None
        sent_id = sent.get("id", "")
        assert refused["id"] == (sent_id if isinstance(sent_id, str) else "")
        assert not Job.objects.exists()


@pytest.mark.parametrize("command", VALID)
def test_an_unknown_field_is_refused_by_name(queue: QueueClient, command: str) -> None:
    for field in ("colour", "ttr", "Topic", "key", "", "a\nb", "x" * 1000):
        refused = queue.refused(400, command, **VALID[command], **{field: 1})
        assert f"{field[:40]}".replace("\n", "\\n") in refused["error"]
        assert "Unknown field" in refused["error"]
        assert all(known in refused["error"] for known in fields_of(command))
        assert len(refused["error"]) < 1000
        assert not Job.objects.exists()


def test_only_some_of_very_many_unknown_fields_are_named(queue: QueueClient) -> None:
    refused = queue.refused(400, "pop", **{f"field{n}": n for n in range(10_000)})
    assert len(refused["error"]) < 10_000


@pytest.mark.parametrize("name", ["push", "ADD", "", " add", None, 1, True, [], ["add"], {"add": 1}, "x" * 1000])
def test_unknown_command_is_refused_with_the_list_of_commands(queue: QueueClient, name: Any) -> None:
    refused = queue.sent(400, {"command": name, "id": "mail:1"})
    assert refused["error"].startswith("command is ")
    assert refused["error"].endswith("one of add, pop, finish, delete, touch, release, bury, peek.")
    assert refused["id"] == "mail:1"


@pytest.mark.parametrize("data", [{}, {"topic": "mail.send"}, b""])
def test_missing_command_is_refused_with_the_list_of_commands(queue: QueueClient, data: Any) -> None:
    refused = queue.sent(400, data)
    assert refused["error"].startswith("command is missing: use one of add, pop, ")


@pytest.mark.parametrize("data", [b"[]", b"null", b'"pop"', b"1", b"true", b'[{"command": "pop"}]'])
def test_request_that_is_not_an_object_is_refused(queue: QueueClient, data: bytes) -> None:
    assert "send a JSON object" in queue.sent(400, data)["error"]


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("topic", True, "true"),
        ("id", {"order": None}, '{"order": null}'),
        ("delay", False, "false"),
        ("TTR", [None], "[null]"),
        ("priority", "ü", "'ü'"),
        ("on_conflict", ["keep"], '["keep"]'),
    ],
)
def test_a_refused_value_is_shown_as_json(queue: QueueClient, field: str, value: Any, shown: str) -> None:
    assert f": {shown} is not " in queue.refused(400, "add", **VALID["add"] | {field: value})["error"]


def test_a_refused_request_is_shown_as_json(queue: QueueClient) -> None:
    assert queue.sent(400, b"null")["error"].startswith("The request is null: ")
    assert queue.sent(400, {"command": None})["error"].startswith("command is null: ")


NOT_JSON = [
    b"{", b"command=pop", b"\xff\xfe", b"{'command': 'pop'}", b'{"command": "pop"} x', b"NaN",
    b'{"command": "pop", "topic": "mail.send", "wait": NaN}',
    b'{"command": "pop", "topic": "mail.send", "wait": Infinity}',
    b'{"command": "pop", "topic": "mail.send", "wait": 1e999}',
    b'{"command": "pop", "topic": "mail.send", "wait": ' + b"9" * 5000 + b"}",
    b'{"command": "pop", "id": "\\ud800"}', b"[" * 20_000, b'{"a":' * 20_000,
]  # fmt: skip


@pytest.mark.parametrize("data", NOT_JSON, ids=lambda data: repr(data[:60]))
def test_invalid_json_is_refused_in_the_envelope(queue: QueueClient, data: bytes) -> None:
    assert "request body" in queue.sent(400, data)["error"]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/xml"]
)
def test_another_content_type_is_refused_in_the_envelope(queue: QueueClient, content_type: str) -> None:
    refused = queue.sent(415, b'{"command": "pop", "topic": "mail.send"}', **{"Content-Type": content_type})
    assert "media type" in refused["error"].lower()
    assert "Content-Type: application/json" in refused["error"]


@pytest.mark.parametrize("encode", [gzip.compress, bytes], ids=["compressed", "as its header says only"])
def test_a_compressed_body_is_refused_as_such(queue: QueueClient, encode: Callable[[bytes], bytes]) -> None:
    sent = encode(b'{"command": "pop", "topic": "mail.send"}')
    refused = queue.sent(415, sent, **{"Content-Encoding": "gzip"})
    assert "Content-Encoding: gzip" in refused["error"]


def test_half_a_pair_of_surrogates_is_named(queue: QueueClient) -> None:
    """Programs whose strings are UTF-16 send it when they cut a text."""
    refused = queue.sent(400, b'{"command": "release", "id": "a", "error": "\\ud83d"}')
    assert "half of a surrogate pair" in refused["error"]


def test_charset_in_the_content_type_is_accepted(queue: QueueClient) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert queue.sent(200, {"command": "pop", "topic": "mail.send"}, **headers)["success"]


@pytest.mark.parametrize(
    ("body", "status"), [("x" * 70_000, 413), ("a\u0000b", 400), ([[]] * 10_000, 200), ({"a": "é" * 1000}, 200)]
)
def test_job_body_that_the_engine_refuses_is_refused(queue: QueueClient, body: Any, status: int) -> None:
    refused = queue.refused(status, "add", **VALID["add"] | {"body": body})
    assert status == 200 or "body" in refused["error"]
    assert Job.objects.exists() == (status == 200)


def test_request_above_the_callers_limit_is_refused_in_the_envelope(
    make_token: Callable[..., str], api: Callable[..., Any]
) -> None:
    small = QueueClient(api(make_token("small", topics={"*": "produce"}, max_request_bytes=100)))
    refused = small.refused(413, "add", **VALID["add"] | {"body": "x" * 200})
    assert (refused["success"], refused["id"]) == (False, "")


@pytest.mark.parametrize("command", ["add", "pop", "peek", "delete"])
def test_unknown_topic_is_an_error_and_not_an_empty_queue(queue: QueueClient, command: str) -> None:
    refused = queue.refused(400, command, **VALID[command] | {"topic": "nobody.knows"})
    assert refused["error"].startswith("topic: 'nobody.knows' is unknown")
    assert "mail.send" not in refused["error"]


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_another_method_is_refused_in_the_envelope(queue: QueueClient, method: str) -> None:
    answer = queue.client.request(method, "/api/queue/")
    assert answer.status_code == 405
    assert answer.json()["success"] is False
