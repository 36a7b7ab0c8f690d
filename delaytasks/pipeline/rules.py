"""A rule that an audit goes by: which rows of the business should have a promise, and when it is due.

Read from a TOML file that may declare several, each as a [[rule]]. Knows no Spark, so that a mistake is told at once.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .settings import BadSettings

FAULTS = (
    "missing",
    "orphan",
    "twice",
    "called_off",
    "died",
    "early",
    "late",
)  # must be empty, unless the rule says may
CLASSES = (*FAULTS, "open", "kept")
TYPES = "bigint, int, smallint, string, boolean, timestamp, date, double, decimal(p, s)"
TYPE = re.compile(
    r"bigint|int|smallint|string|boolean|timestamp|date|double|decimal\((\d{1,2}), ?(\d{1,2})\)", re.ASCII
)
NAME = re.compile(r"[^\W\d]\w*")  # of a column, or of a part of a table's name
TABLE = re.compile(rf"{NAME.pattern}(\.{NAME.pattern})?")
MOST_SECONDS = 3650 * 86_400


class BadRule(BadSettings):
    """A rule that cannot be gone by: the sentence names its file, the rule and the field."""


@dataclass(frozen=True)
class Rule:
    """table or parquet   where the business's rows are: a table beside the jobs with a whole-number `id`, or files
    columns            of it that the expressions use: name -> type, as nothing is guessed
    key                the job's key
    since              the instant from which the delay counts
    when               which rows should have a promise
    holds              rows whose timeout may not have been called off
    late_seconds       how late it may begin
    early_seconds      how much before the rule's time it may begin, as clocks differ; never before its own due time
    may                faults that may be there
    where              the file and the rule, for messages

    key, since, when and holds are expressions of Spark SQL over the columns.
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
    delay_seconds: int = 0
    late_seconds: int = 60
    early_seconds: int = 1
    may: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """The classes that must be empty."""
        return tuple(each for each in FAULTS if each not in self.may)

    @property
    def title(self) -> str:
        return self.name or self.topic

    @property
    def source(self) -> str:
        """What people call the place of the business's rows."""
        return self.table or self.parquet

    def bad(self, field: str, problem: str) -> BadRule:
        return BadRule(f"{self.where}, {field}: {problem}")


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _seconds(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= MOST_SECONDS


def _columns(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(_column, value.items()))


def _column(column: tuple[str, Any]) -> bool:
    name, kind = column
    found = TYPE.fullmatch(kind) if isinstance(kind, str) else None
    if not found or not NAME.fullmatch(name):
        return False
    digits, after = (int(each or 0) for each in found.groups())
    return not digits or (digits <= 38 and after <= digits)


EXPRESSION = "an expression of Spark SQL over the columns"
CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {  # field -> whether a value may stand there; what may
    "name": (_text, "a text"),
    "topic": (_text, "a topic's name"),
    "table": (lambda value: _text(value) and bool(TABLE.fullmatch(value)), "a table's name, or schema.table"),
    "parquet": (_text, "a path, a pattern of paths, or a URI"),
    "columns": (_columns, f"names of columns with their types: {TYPES}"),
    "key": (_text, EXPRESSION),
    "since": (_text, f"{EXPRESSION} that is an instant"),
    "when": (_text, f"{EXPRESSION} that is true or false"),
    "holds": (_text, f"{EXPRESSION} that is true or false"),
    "delay_seconds": (_seconds(-MOST_SECONDS), "a whole number of seconds, at most ten years"),
    "late_seconds": (_seconds(0), "a whole number of seconds from 0 on"),
    "early_seconds": (_seconds(0), "a whole number of seconds from 0 on"),
    "may": (
        lambda value: isinstance(value, list | tuple) and all(each in FAULTS for each in value),
        f"a list of {', '.join(FAULTS)}",
    ),
}
NEEDED = ("topic", "columns", "key", "since")


def read(path: str) -> list[dict[str, Any]]:
    """The rules of a file, as they are written. Raises BadRule: no such file, no TOML, or nothing to go by."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRule(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadRule(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}.") from error
    except tomllib.TOMLDecodeError as error:
        raise BadRule(f"{path} is no TOML: {error}.") from error
    unknown = sorted(document.keys() - {"rule"})
    given = document.get("rule")
    if unknown or not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        found = f"there is {', '.join(unknown)}" if unknown else "there is none"
        raise BadRule(f"{path}: {found}; rules may stand there, each as a [[rule]].")
    return given


def rules_of(path: str, given: list[dict[str, Any]]) -> list[Rule]:
    """Raises BadRule, which names the file, the rule, the field, what was found and what may stand there."""
    found = [_rule(path, number, each) for number, each in enumerate(given, 1)]
    titles = [each.title for each in found]
    for rule in found:
        if titles.count(rule.title) > 1:
            raise rule.bad("name", f"{rule.title!r} is another rule's, too; each has a name of its own.")
    return found


def _rule(path: str, number: int, given: Mapping[str, Any]) -> Rule:
    name = given.get("name")
    where = f"{path}, rule {number}" + (f" ({name})" if isinstance(name, str) else "")
    for field, value in given.items():
        if field not in CHECKS:
            raise BadRule(f"{where}, {field}: there is no such field; there are {', '.join(CHECKS)}.")
        right, what = CHECKS[field]
        if not right(value):
            raise BadRule(f"{where}, {field}: {value!r} was found; {what} may stand there.")
    for field in NEEDED:
        if field not in given:
            raise BadRule(f"{where}, {field}: nothing was found; {CHECKS[field][1]} must stand there.")
    if ("table" in given) == ("parquet" in given):
        found = "both were found" if "table" in given else "neither was found"
        raise BadRule(f"{where}, table or parquet: {found}; one of them says where the business's rows are.")
    known = {each.name for each in fields(Rule)} - {"where", "may", "parquet"}
    parquet = _beside(path, given["parquet"]) if "parquet" in given else ""
    plain = {field: value for field, value in given.items() if field in known}
    return Rule(where, may=tuple(given.get("may", ())), parquet=parquet, **plain)


def _beside(path: str, named: str) -> str:
    """A relative path is one from the rule's file on."""
    return named if urlsplit(named).scheme else str(Path(path).absolute().parent / named)
