"""Examples in the OpenAPI document."""

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
    "expires_seconds": None,
    "priority": 0,
    "attempt": 0,
    "failures": 0,
    "body": {"order": 1042},
    "created_at": "2031-05-01T09:00:00.250Z",
    "reserved_at": None,
    "lease_until": None,
    "ended_at": None,
    "worker": "",
    "error": "",
    "error_code": None,
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
    "error_code": None,
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
    "again": 0,
    "jobs": [
        {"id": 71, "topic": "order.close", "key": "order:1042"},
        {"id": 72, "topic": "refund.check", "key": "refund:7"},
    ],
}
RECEIPT = "0f3d5a1b9c7e4d2f8a6b1c3e5d7f9a0b"
ATTEMPT: dict[str, Any] = {
    "id": 71,
    "topic": "order.close",
    "key": "order:1042",
    "attempt": 1,
    "receipt": RECEIPT,
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
    "target": None,
    "delayed_within_horizon": 312,
    "horizon_seconds": 3600,
    "ready": 2,
    "reserved": 5,
    "dead": 0,
    "at_least": False,
    "oldest_ready_ms": 41,
}
NEW_SCHEDULE: dict[str, Any] = {
    "name": "report.daily",
    "topic": "report.send",
    "cron": "30 2 * * 1-5",
    "tz": "Europe/Berlin",
    "within_seconds": 21600,
}
SCHEDULE: dict[str, Any] = {
    **NEW_SCHEDULE,
    "body": {},
    "ttr_seconds": None,
    "every_seconds": None,
    "rrule": "",
    "delay_seconds": None,
    "period_seconds": None,
    "repeat": 0,
    "start_at": "2031-05-01T09:00:00.250Z",
    "gap": "run",
    "overlap": "once",
    "missed": "last",
    "running": "skip",
    "source": "staff",
    "state": "running",
    "problem": "",
    "next_run_at": "2031-05-02T00:30:00.000Z",
}
NEXT_RUN: dict[str, Any] = {
    "wall_time": "2031-05-02T02:30:00",
    "due_at": "2031-05-02T00:30:00.000Z",
    "local_time": "2031-05-02T02:30:00.000+02:00",
}


def request(name: str, value: Any) -> OpenApiExample:
    return OpenApiExample(name, value, request_only=True)


def response(name: str, value: Any, status: int = 200) -> OpenApiExample:
    return OpenApiExample(name, value, response_only=True, status_codes=[str(status)])
