"""One job, as the examples of the OpenAPI document tell it."""

from typing import Any

from drf_spectacular.utils import OpenApiExample

NEW: dict[str, Any] = {
    "topic": "order.close",
    "key": "order:1042",
    "delay_seconds": 1800,
    "body": {"order": 1042},
    "on_conflict": "keep",
}
JOB: dict[str, Any] = {
    "id": 71,
    "topic": "order.close",
    "key": "order:1042",
    "state": "delayed",
    "due_at": "2031-05-01T09:30:00.250Z",
    "ttr_seconds": 60,
    "attempt": 0,
    "failures": 0,
    "body": {"order": 1042},
    "created_at": "2031-05-01T09:00:00.250Z",
    "reserved_at": None,
    "lease_until": None,
    "ended_at": None,
    "worker": "",
    "error": "",
}
EVENT: dict[str, Any] = {
    "outcome": "scheduled",
    "attempt": 0,
    "at": "2031-05-01T09:00:00.250Z",
    "due_at": "2031-05-01T09:30:00.250Z",
    "next_due_at": "2031-05-01T09:30:00.250Z",
    "late_ms": None,
    "ran_ms": None,
    "worker": "",
    "actor": "php-shop",
    "reason": "",
    "error": "",
}
NEW_MANY: dict[str, Any] = {
    "jobs": [
        {"topic": "order.close", "key": "order:1042", "delay_seconds": 1800},
        {"topic": "refund.check", "key": "refund:7", "due_at": "2031-05-01T08:45:00+02:00", "body": {"refund": 7}},
    ],
    "on_conflict": "replace",
}
MADE_MANY: dict[str, Any] = {
    "created": 1,
    "kept": 0,
    "replaced": 1,
    "jobs": [
        {"id": 71, "topic": "order.close", "key": "order:1042"},
        {"id": 72, "topic": "refund.check", "key": "refund:7"},
    ],
}
ATTEMPT: dict[str, Any] = {
    "id": 71,
    "topic": "order.close",
    "key": "order:1042",
    "attempt": 1,
    "failures": 0,
    "body": {"order": 1042},
    "ttr_seconds": 60,
    "due_at": "2031-05-01T09:30:00.250Z",
    "deadline": "2031-05-01T09:31:00.254Z",
    "late_ms": 4,
}
TOPIC: dict[str, Any] = {
    "name": "order.close",
    "paused": False,
    "handled": True,
    "delayed_within_horizon": 312,
    "horizon_seconds": 3600,
    "ready": 2,
    "reserved": 5,
    "dead": 0,
    "at_least": False,
    "oldest_ready_ms": 41,
}


def request(name: str, value: Any) -> OpenApiExample:
    return OpenApiExample(name, value, request_only=True)


def answer(name: str, value: Any, status: int = 200) -> OpenApiExample:
    return OpenApiExample(name, value, response_only=True, status_codes=[str(status)])
