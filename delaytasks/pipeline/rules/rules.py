"""Rules of an audit: which business rows should have a job, and when this job is due.

Rules are read from a TOML file with one or more [[rule]] tables. This needs no Spark, so mistakes are reported before
Spark starts.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...calendars.wall_time import to_zone
from ...exceptions import BadTimeZone
from ..config import BadSettings
from ..delays import durations
from ..delays.durations import MAX_SECONDS, Duration

FAULTS = (
    "missing",
    "orphan",
    "twice",
    "called_off",
    "died",
    "early",
    "late",
)  # classes that must be empty unless the rule's `may` allows them
CLASSES = (*FAULTS, "open", "kept")
STATUSES = ("cancelled_in_time", "cancelled_late", "ran", "dead", "live")  # what became of a row's jobs
TYPES = "bigint, int, smallint, string, boolean, timestamp, date, double, decimal(p, s)"
TYPE = re.compile(
    r"bigint|int|smallint|string|boolean|timestamp|date|double|decimal\((\d{1,2}), ?(\d{1,2})\)", re.ASCII
)
CARRIED_TYPES = ("string", "bigint", "int", "smallint", "boolean")  # types of columns that `carry` can name
MAX_CARRIED = 10  # maximum number of columns that `carry` names
BEGUN_AT, AS_OF = "begun_at", "as_of"
OUTCOME_TIMES = {  # names that `outcome` can use beside the columns, and what they mean
    BEGUN_AT: "the time at which the job began",
    AS_OF: "the time of the audit",
}
NAME = re.compile(r"[^\W\d]\w*")  # a column, or a part of a table's name
TABLE = re.compile(rf"{NAME.pattern}(\.{NAME.pattern})?")


class BadRule(BadSettings):
    """A rule is invalid. The message names the file, the rule and the field."""


@dataclass(frozen=True)
class Rule:
    """A rule of an audit.

    table or parquet   the business rows: a table with an integer `id` in the jobs' database, or files
    columns            columns that the expressions use: name -> type
    key                the job's key
    since              the time to which the delay is added to get the due time
    delay              a duration such as "60 days", or an expression: a number of seconds, or an interval; "": the
                       delay is delay_seconds
    zone, calendar     the time zone in which the delay's days are added; or the calendar whose working days and open
                       hours the delay counts
    when               whether a row should have a job
    holds              whether a row's job must not have been cancelled
    late_seconds       how long after the due time the job may begin
    early_seconds      how long before the rule's due time the job may begin, as clocks differ; it may never begin
                       before its own due time
    allowed_faults     the TOML key `may`
    carry              columns by whose values the answer is broken down
    amount             the column with the cost of a row whose job was late or missing; "": none
    outcome            whether a row whose job has begun reached its goal: true, false, or null while it is not known;
                       "": the rule has no outcome
    where              file and rule, for messages

    key, since, when and holds are Spark SQL expressions over the columns; so is delay, unless it is a duration. outcome
    is a Spark SQL expression over the columns and OUTCOME_TIMES.
    """

    where: str
    topic: str
    columns: Mapping[str, str]
    key: str
    since: str
    name: str = ""
    table: str = ""
    parquet: str = ""
    when: str = "true"
    holds: str = "false"
    delay: str = ""
    zone: str = ""
    calendar: str = ""
    delay_seconds: int = 0
    late_seconds: int = 60
    early_seconds: int = 1
    allowed_faults: tuple[str, ...] = ()
    carry: tuple[str, ...] = ()
    amount: str = ""
    outcome: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """The classes that must be empty."""
        return tuple(each for each in FAULTS if each not in self.allowed_faults)

    @property
    def duration(self) -> Duration | None:
        """The delay, if it is the same for each row; None if it is an expression."""
        return durations.parse(self.delay) if self.delay else Duration(None, self.delay_seconds)

    @property
    def outcome_columns(self) -> tuple[str, ...]:
        """The columns whose names occur in `outcome`. A name in a string literal counts, too."""
        return tuple(each for each in self.columns if re.search(rf"\b{each}\b", self.outcome, re.IGNORECASE))

    @property
    def title(self) -> str:
        return self.name or self.topic

    @property
    def source(self) -> str:
        """Name of the business rows' table or files, for messages."""
        return self.table or self.parquet

    def bad(self, field: str, problem: str) -> BadRule:
        return BadRule(f"{self.where}, {field}: {problem}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _is_zone(value: Any) -> bool:
    try:
        return bool(to_zone(value))
    except BadTimeZone:
        return False


def _seconds(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= MAX_SECONDS


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value)) and len({*value}) == len(value) <= MAX_CARRIED


def _are_columns(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(_is_column, value.items()))


def _is_column(column: tuple[str, Any]) -> bool:
    name, kind = column
    match = TYPE.fullmatch(kind) if isinstance(kind, str) else None
    if not match or not NAME.fullmatch(name):
        return False
    if match[1] is None:
        return True
    precision, scale = map(int, match.groups())
    return 1 <= precision <= 38 and scale <= precision


EXPRESSION = "a Spark SQL expression over the columns"
CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {  # field -> check of its value, and what is expected
    "name": (_is_text, "a string"),
    "topic": (_is_text, "a topic's name"),
    "table": (lambda value: _is_text(value) and bool(TABLE.fullmatch(value)), "a table's name, or schema.table"),
    "parquet": (_is_text, "a path, a pattern of paths, or a URI"),
    "columns": (_are_columns, f"column names with their types: {TYPES}"),
    "key": (_is_text, EXPRESSION),
    "since": (_is_text, f"{EXPRESSION} of type timestamp"),
    "when": (_is_text, f"{EXPRESSION} of type boolean"),
    "holds": (_is_text, f"{EXPRESSION} of type boolean"),
    "delay": (_is_text, 'a duration such as "60 days", or an expression for seconds or an interval'),
    "zone": (_is_zone, "a time zone such as Europe/Berlin"),
    "calendar": (_is_text, "a calendar's name"),
    "delay_seconds": (_seconds(-MAX_SECONDS), "a whole number of seconds, at most ten years"),
    "late_seconds": (_seconds(0), "a whole number of seconds, at least 0"),
    "early_seconds": (_seconds(0), "a whole number of seconds, at least 0"),
    "may": (
        lambda value: isinstance(value, list | tuple) and all(each in FAULTS for each in value),
        f"a list of {', '.join(FAULTS)}",
    ),
    "carry": (_are_names, f"a list of at most {MAX_CARRIED} different columns, such as a customer's segment"),
    "amount": (_is_text, "a column with a number"),
    "outcome": (_is_text, f"{EXPRESSION}, {BEGUN_AT} and {AS_OF}, of type boolean"),
}
REQUIRED = ("topic", "columns", "key", "since")


def read(path: str) -> list[dict[str, Any]]:
    """Return the [[rule]] tables of a file, unchecked. Raises BadRule if it is missing, not TOML or has no rules."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadRule(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadRule(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}.") from error
    except tomllib.TOMLDecodeError as error:
        raise BadRule(f"{path} is not valid TOML: {error}.") from error
    unknown = sorted(document.keys() - {"rule"})
    tables = document.get("rule")
    if unknown or not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
        problem = f"unknown key {', '.join(unknown)}" if unknown else "no rules"
        raise BadRule(f"{path}: {problem}. Declare each rule as a [[rule]] table.")
    return tables


def rules_of(path: str, tables: list[dict[str, Any]]) -> list[Rule]:
    """Parse the [[rule]] tables of a file.

    Raises BadRule, which names the file, the rule, the field, its value and what is expected.
    """
    rules = [_parse_rule(path, number, each) for number, each in enumerate(tables, 1)]
    titles = [each.title for each in rules]
    for rule in rules:
        if titles.count(rule.title) > 1:
            raise rule.bad("name", f"{rule.title!r} is used by another rule, too. Give each rule its own name.")
    return rules


def _parse_rule(path: str, number: int, table: Mapping[str, Any]) -> Rule:
    name = table.get("name")
    where = f"{path}, rule {number}" + (f" ({name})" if isinstance(name, str) else "")
    for field, value in table.items():
        if field not in CHECKS:
            raise BadRule(f"{where}, {field}: unknown field. Known: {', '.join(CHECKS)}.")
        is_valid, expected = CHECKS[field]
        if not is_valid(value):
            raise BadRule(f"{where}, {field}: {value!r} is invalid; expected {expected}.")
    for field in REQUIRED:
        if field not in table:
            raise BadRule(f"{where}, {field}: missing; expected {CHECKS[field][1]}.")
    if ("table" in table) == ("parquet" in table):
        problem = "both are given" if "table" in table else "neither is given"
        raise BadRule(f"{where}, table or parquet: {problem}; give one of them.")
    plain_fields = {each.name for each in fields(Rule)} - {"where", "allowed_faults", "parquet", "carry"}
    parquet = _resolve(path, table["parquet"]) if "parquet" in table else ""
    plain = {field: value for field, value in table.items() if field in plain_fields}
    rule = Rule(where, allowed_faults=tuple(table.get("may", ())), parquet=parquet, carry=tuple(table.get("carry", ())),
                **plain)  # fmt: skip
    _check_delay(rule, table)
    _check_carried(rule)
    return rule


def _check_delay(rule: Rule, table: Mapping[str, Any]) -> None:
    for one, other in (("delay", "delay_seconds"), ("zone", "calendar")):
        if one in table and other in table:
            raise rule.bad(f"{one} or {other}", "both are given; give one of them.")
    for field in ("zone", "calendar"):
        if field in table and not rule.delay:
            raise rule.bad(field, "it has no meaning without a delay.")
    try:
        duration = durations.parse(rule.delay)
        if duration:
            durations.check(
                rule.delay, duration, zone=rule.zone, calendar=rule.calendar, options="a zone or a calendar"
            )
    except durations.BadDuration as error:
        raise rule.bad("delay", f"it {error}") from error


def _check_carried(rule: Rule) -> None:
    """Check `carry`, `amount` and `outcome` against the declared columns. Raises BadRule."""
    for name in rule.carry:
        if name not in rule.columns:
            raise rule.bad("carry", _undeclared(rule, name))
        if rule.columns[name] not in CARRIED_TYPES:
            expected = ", ".join(CARRIED_TYPES)
            raise rule.bad("carry", f"{name} is {rule.columns[name]}, but must be one of {expected}.")
    for name, meaning in OUTCOME_TIMES.items():
        if rule.outcome and name in map(str.lower, rule.columns):
            raise rule.bad("outcome", f"{name} is {meaning}, so no column may have this name.")
    if not rule.amount:
        return
    if not rule.carry:
        raise rule.bad("amount", "it has no meaning without carry.")
    if rule.amount not in rule.columns:
        raise rule.bad("amount", _undeclared(rule, rule.amount))
    kind = rule.columns[rule.amount]
    if kind in ("string", "boolean", "timestamp", "date"):
        raise rule.bad("amount", f"{rule.amount} is {kind}, but must be a number.")


def _undeclared(rule: Rule, name: str) -> str:
    nested = " A field inside a nested column cannot be used." if "." in name else ""
    return f"{name} is not one of the rule's columns: {', '.join(rule.columns)}.{nested}"


def _resolve(path: str, location: str) -> str:
    """Return a location relative to the rules file as an absolute path. A URI is returned unchanged."""
    return location if urlsplit(location).scheme else str(Path(path).absolute().parent / location)
