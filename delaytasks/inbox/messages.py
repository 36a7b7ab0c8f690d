"""Validate the messages of an inbox, and convert each to a "schedule" or "cancel" command. `formats` parses them."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from .. import clock
from ..exceptions import BadInput, short_repr
from ..jobs.inputs import to_new_job
from ..validators import JSON_NULL, MAX_KEY, check_key, check_line
from .declarations import Inbox
from .formats import Received, Refused, read

Action = Literal["schedule", "cancel"]
ACTIONS = ("schedule", "cancel")
MODES = ("replace", "keep", "reject", "again")
ENVELOPE = ("id", "action", "topic", "key")
TERMS = ("due_at", "delay_seconds", "body", "ttr_seconds", "expires_seconds", "on_conflict")


@dataclass(frozen=True)
class Command:
    """The validated command of a message.

    source, message_id  identify the message in its inbox; `source` is that of a CloudEvent, otherwise ""
    terms               arguments of schedule(), without topic and key; {} for a cancel
    digest              hash of the command; equal for the same command in another format
    """

    action: Action
    source: str
    message_id: str
    topic: str
    key: str
    terms: Mapping[str, Any]
    on_conflict: Any
    digest: str

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, self.message_id


def decode(received: Received, inbox: Inbox, *, now_ms: int) -> Command:
    """Return the validated command of a message. Does not check that its topic is known. Raises Refused.

    now_ms   the database's time, in ms since 1970
    """
    fields, source, names = read(received, inbox.protocol)
    unknown = fields.keys() - {*ENVELOPE, *TERMS}
    if unknown:
        known = ", ".join((*ENVELOPE, *TERMS))
        raise Refused("invalid", f"Unknown field {short_repr(min(unknown, key=str))}. Known: {known}.")
    action = fields.get("action")
    if action not in ACTIONS:
        name = names.get("action", "action")
        raise Refused("invalid", f"{name} is {short_repr(action)}; use 'schedule' or 'cancel'.")
    terms, mode = _terms(fields, action, names)
    command = Command(
        action, _identifier(source, "source", empty=True), _identifier(fields.get("id"), "id"),
        fields.get("topic", ""), fields.get("key", ""), terms, mode,
        _digest(action, fields.get("topic"), fields.get("key"), terms, mode),
    )  # fmt: skip
    _check_allowed(command, inbox)
    _check(command, inbox, now_ms if received.sent_ms is None else min(now_ms, received.sent_ms))
    return command


# -- fields -------------------------------------------------------------------------------------


def _terms(fields: Mapping[str, Any], action: str, names: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Return the arguments of schedule() and the value of on_conflict; {} and "" for a cancel. Raises Refused."""
    named = {field: names.get(field, field) for field in TERMS}
    if action == "cancel":
        useless = fields.keys() & set(TERMS)
        if useless:
            raise Refused("invalid", f"{named[min(useless)]} is not allowed in a message that cancels.")
        return {}, ""
    mode = fields.get("on_conflict", MODES[0])
    if mode not in MODES:
        raise Refused("invalid", f"{named['on_conflict']} is {short_repr(mode)}; use {', '.join(map(repr, MODES))}.")
    terms: dict[str, Any] = {}
    for field, argument, convert in _CONVERTERS:
        if fields.get(field) is not None:
            terms[argument] = convert(named[field], fields[field])
    if "body" in fields:
        terms["body"] = JSON_NULL if fields["body"] is None else fields["body"]
    return terms, mode


def _moment(name: str, value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise Refused("invalid", f"{name} is {short_repr(value)}; give a time such as 2030-01-31T12:00:00Z.") from None


def _seconds(name: str, value: Any) -> float:
    """Return a number of seconds. A value from a header is a str."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise Refused("invalid", f"{name} is {short_repr(value)}; give a number of seconds.")
    return number


_CONVERTERS: tuple[tuple[str, str, Callable[[str, Any], Any]], ...] = (
    ("due_at", "due_at", _moment), ("delay_seconds", "delay", _seconds), ("ttr_seconds", "ttr", _seconds),
    ("expires_seconds", "expires", _seconds),
)  # fmt: skip


def _identifier(value: Any, what: str, *, empty: bool = False) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = short_repr(value)
    try:
        check_line(value, what=what)
    except BadInput:
        value = None
    if value is None or not (value or empty):
        hint = " Repeated messages are recognized by it." if what == "id" else ""
        raise Refused("invalid", f"The message has no valid {what}: give 1 to {MAX_KEY} printable characters.{hint}")
    return str(value)


def _digest(action: str, topic: Any, key: Any, terms: Mapping[str, Any], mode: str) -> str:
    named = {name: None if value is JSON_NULL else value for name, value in terms.items()}
    try:
        text = json.dumps([action, topic, key, named, mode], sort_keys=True, default=str)
    except RecursionError:
        raise Refused("invalid", "The message is nested too deeply.") from None
    return hashlib.sha256(text.encode()).hexdigest()


# -- checks -------------------------------------------------------------------------------------


def _check_allowed(command: Command, inbox: Inbox) -> None:
    if command.topic not in inbox.topics:
        raise Refused("not-allowed", f"The inbox {inbox.name!r} does not allow topic {short_repr(command.topic)}.")


def _check(command: Command, inbox: Inbox, sent_ms: int) -> None:
    try:
        check_key(command.key)
        if command.action == "schedule":
            to_new_job(command.topic, key=command.key, **command.terms)
    except BadInput as error:
        raise Refused("invalid", f"{type(error).__name__}: {error}") from None
    due_at = command.terms.get("due_at")
    if due_at is not None and clock.to_ms(due_at) < sent_ms - inbox.past_seconds * 1000:
        raise Refused(
            "due-in-past",
            f"due_at {due_at.isoformat()} is more than {inbox.past_seconds:,.0f} s before the message was sent, at "
            f"{clock.from_ms(sent_ms).isoformat()} (past_seconds).",
        )
