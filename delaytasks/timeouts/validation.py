"""Validate declarations, for the system checks. An invalid declaration has no effect."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from django.core.exceptions import EmptyResultSet, FieldDoesNotExist, ValidationError
from django.db import DatabaseError, DataError, NotSupportedError, connections, models, router, transaction
from django.db.models import Func, Lookup, Q, QuerySet, Subquery
from django.db.models.aggregates import Aggregate
from django.db.models.constants import LOOKUP_SEP
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now, Random
from django.db.models.functions.datetime import TimezoneMixin
from django.db.models.lookups import FieldGetDbPrepValueIterableMixin, Regex
from django.db.models.query import RawQuerySet
from django.db.models.sql import Query
from django.utils.functional import Promise

from ..calendars import WorkingDays
from . import conditions
from .declarations import Declaration

REFUSED = (Now, Random, Subquery, Aggregate, RawSQL, QuerySet, RawQuerySet, Query)
_OF_SESSION = re.compile(
    r"\b(CURRENT_(CATALOG|DATE|ROLE|SCHEMA|SETTING|TIME|TIMESTAMP|USER)|NOW|LOCALTIME(STAMP)?|"
    r"(CLOCK|STATEMENT|TRANSACTION)_TIMESTAMP)\b",
    re.IGNORECASE,
)
LONGEST = timedelta(days=3_660)


class Problem(NamedTuple):
    id: str
    message: str
    hint: str


_known: "WeakKeyDictionary[Declaration, list[Problem]]" = WeakKeyDictionary()


def is_valid(declaration: Declaration) -> bool:
    return not problems(declaration)


def problems(declaration: Declaration) -> list[Problem]:
    """Return the problems of a declaration. Needs all models loaded, and no database."""
    if declaration not in _known:
        _known[declaration] = list(_model(declaration)) or [*_fields(declaration), *_conditions(declaration)]
    return _known[declaration]


def _model(declaration: Declaration) -> Iterator[Problem]:
    meta = declaration.model._meta
    composite = isinstance(meta.pk, models.CompositePrimaryKey)
    if meta.abstract or not meta.managed or composite:
        kind = "abstract" if meta.abstract else "not managed" if not meta.managed else "without a single primary key"
        yield Problem(
            "delaytasks.E040",
            f"Timeout {declaration.topic!r}: the model {meta.label} is {kind}, so its rows cannot have jobs.",
            "Declare it on a model with a table of its own and one column as primary key, or use schedule().",
        )


def _fields(declaration: Declaration) -> Iterator[Problem]:
    if declaration.computes_due_times:
        return
    field = _find(declaration, declaration.on)
    if not isinstance(field, models.DateTimeField):
        found = "does not exist" if field is None else f"is a {type(field).__name__}"
        yield Problem(
            "delaytasks.E041",
            f"Timeout {declaration.topic!r}: on={declaration.on!r} must be a DateTimeField of {_label(declaration)}, "
            f"but that field {found}.",
            "Name a DateTimeField: a date without time and zone is not a point in time. "
            + _choices(declaration, models.DateTimeField),
        )
    span = declaration.span.count * timedelta(1) if isinstance(declaration.span, WorkingDays) else declaration.span
    if isinstance(span, timedelta) and span > LONGEST:
        option = "before" if declaration.is_before else "after"
        yield Problem(
            "delaytasks.E042",
            f"Timeout {declaration.topic!r}: {option} is {span.days:,} days; at most {LONGEST.days:,}, ten years, are "
            "possible.",
            "Give a shorter time. For a later one, store the moment in a DateTimeField and name it in on=.",
        )
    name = declaration.duration_field
    duration = None if name is None else _find(declaration, name)
    if name is not None and not isinstance(duration, models.DurationField):
        found = "does not exist" if duration is None else f"is a {type(duration).__name__}"
        option = "before" if declaration.is_before else "after"
        yield Problem(
            "delaytasks.E042",
            f"Timeout {declaration.topic!r}: {option}={name!r} must be a DurationField of {_label(declaration)}, but "
            f"that field {found}.",
            f"Name a DurationField, or give a timedelta. {_choices(declaration, models.DurationField)}",
        )


def _label(declaration: Declaration) -> str:
    return declaration.model._meta.label


def _choices(declaration: Declaration, kind: type[models.Field]) -> str:
    """Return a sentence that names the model's fields of this kind."""
    names = [repr(field.name) for field in declaration.concrete._meta.concrete_fields if isinstance(field, kind)]
    return f"{_label(declaration)} has {', '.join(names) or 'none'}."


def _find(declaration: Declaration, name: str) -> Any:
    try:
        field = declaration.concrete._meta.get_field(name)
    except FieldDoesNotExist:
        return None
    return field if getattr(field, "concrete", False) else None


def _conditions(declaration: Declaration) -> Iterator[Problem]:
    for condition, its in _named(declaration):
        yield from _condition(declaration, condition, its)


def _named(declaration: Declaration) -> Iterator[tuple[Q, str]]:
    """Yield each condition, with the beginning of the messages about it."""
    for name, condition in declaration.named_conditions.items():
        yield condition, f"Timeout {declaration.topic!r}: its condition{'' if name == 'while_' else f' {name}'}"


def wrong_patterns(declaration: Declaration, using: str) -> Iterator[Problem]:
    """Yield a problem for each regular expression that this database cannot read. problems() knows those of SQLite."""
    if connections[using].vendor != "postgresql":
        return
    for condition, its in _named(declaration):
        for pattern in _patterns(_query(declaration, condition, using)):
            try:
                with transaction.atomic(using), connections[using].cursor() as cursor:
                    cursor.execute("SELECT '' ~ %s", [pattern])
            except DataError as error:
                yield _wrong(its, f"{pattern!r:.80} is an {str(error).strip()}", "Correct the regular expression.")


def _condition(declaration: Declaration, condition: Q, its: str) -> list[Problem]:
    """Return the problems of a condition, only those of the first kind found. Their messages begin with `its`."""
    kinds = (_relations, _queries, _lazy_texts, _objects, _naive_values, _nul_texts, _wrong_values)
    return next(filter(None, (list(kind(declaration, condition, its)) for kind in kinds)), [])


def _relations(declaration: Declaration, condition: Q, its: str) -> Iterator[Problem]:
    reverse = sorted({name for name in _names(condition) if _is_reverse(name, declaration.concrete)})
    if reverse:
        yield _wrong(
            its, f"{reverse[0]!r} follows a relation that is no column of its model, to one row or to many",
            "Use the model's own fields and its foreign keys. Keep a count or a state in a field of the model.",
        )  # fmt: skip


def _names(condition: Q) -> list[str]:
    return sorted(conditions.lookups(condition)) + sorted(conditions.referenced(condition))


def _queries(declaration: Declaration, condition: Q, its: str) -> Iterator[Problem]:
    used = list(conditions.expressions(condition))
    found = [type(each).__name__ for each in used if isinstance(each, REFUSED) or _calls_clock(each)]
    found += [name for name in _names(condition) if _depends_on_zone(name, declaration.concrete)]
    found += [type(each).__name__ for each in used if isinstance(each, TimezoneMixin)]
    if found:
        yield Problem(
            "delaytasks.E044",
            f"{its} uses {found[0]!r}, whose value depends on the time or on the session and not on the row alone.",
            "Compare fields with fixed values. For conditions on the time, use on=, after= and before=. Instead of a "
            "subquery, follow a foreign key: Q(customer__active=True).",
        )


def _calls_clock(expression: Any) -> bool:
    """Return whether the SQL of a Func has the time, as that of TransactionNow, or another value of the session."""
    if not isinstance(expression, Func):
        return False
    texts = [expression.extra.get(name, getattr(expression, name)) or "" for name in ("function", "template")]
    return any(map(_OF_SESSION.search, texts))


def _lazy_texts(_: Declaration, condition: Q, its: str) -> Iterator[Problem]:
    if any(isinstance(each, Promise) for each in conditions.values(condition)):
        yield Problem(
            "delaytasks.E044",
            f"{its} has a lazy text, whose value depends on the active language.",
            "Give the text as it is stored in the column.",
        )


def _objects(_: Declaration, condition: Q, its: str) -> Iterator[Problem]:
    nameless = next((type(each).__name__ for each in conditions.without_fixed_text(condition)), None)
    if nameless is not None:
        yield Problem(
            "delaytasks.E044",
            f"{its} has a value of the type {nameless!r}, which has another text in each process, so that no process "
            "would recognize the declaration as applied.",
            "Give a value as it is stored in the column: a text, a number, a date, or a list of these.",
        )


def _naive_values(declaration: Declaration, condition: Q, its: str) -> Iterator[Problem]:
    naive = next(conditions.naive(condition, declaration.concrete), None)
    if naive is not None:
        yield Problem(
            "delaytasks.E044",
            f"{its} compares a time with {naive!r}, which has no time zone: its meaning would depend on TIME_ZONE.",
            "Give an aware datetime, such as datetime(2030, 1, 31, tzinfo=UTC).",
        )


def _nul_texts(_: Declaration, condition: Q, its: str) -> Iterator[Problem]:
    found = next((each for each in conditions.values(condition) if isinstance(each, str) and "\0" in each), None)
    if found is not None:
        yield _wrong(
            its, f"PostgreSQL cannot store a text with a NUL character, {found!r:.80}", "Remove the character."
        )  # fmt: skip


def _wrong_values(declaration: Declaration, condition: Q, its: str) -> Iterator[Problem]:
    try:
        _compile(declaration, condition)
    except Exception as error:  # any error of a field about its value: without this check, each save would fail with it
        if isinstance(error, DatabaseError) and not isinstance(error, NotSupportedError):
            return  # a field that asks the database, which does not answer: its value cannot be checked
        said = " ".join(error.messages) if isinstance(error, ValidationError) else str(error)
        yield _wrong(its, said, "Write the condition as you would in Order.objects.filter(...).")


def _compile(declaration: Declaration, condition: Q) -> None:
    """Compile a query with the condition. Raises the errors of its fields and values."""
    given = declaration.using
    alias = given if given is not None and given in connections else router.db_for_write(declaration.concrete)
    query = _query(declaration, condition, alias)
    if connections[alias].vendor == "sqlite":
        for pattern in _patterns(query):
            _check_pattern(pattern)
    for lookup in _lookups(query.where):
        if lookup.prepare_rhs and lookup.rhs_is_direct_value():  # some fields leave this to the database
            is_list = isinstance(lookup, FieldGetDbPrepValueIterableMixin)
            for value in lookup.rhs if is_list else [lookup.rhs]:
                _check_value(lookup.lhs.output_field, value)
    try:
        query.get_compiler(alias).as_sql()
    except EmptyResultSet:  # no row matches, as in Q(pk__in=[])
        pass


def _query(declaration: Declaration, condition: Q, alias: str) -> Query:
    return declaration.concrete._base_manager.using(alias).filter(condition).query


def _patterns(query: Query) -> Iterator[str]:
    """Yield the regular expressions of a query's condition."""
    for lookup in _lookups(query.where):
        if isinstance(lookup, Regex) and isinstance(lookup.rhs, str):
            yield lookup.rhs


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)  # Django's function for SQLite does that, too
    except re.error as error:
        raise ValueError(f"{pattern!r:.80} is an invalid regular expression: {error}") from error


def _check_value(field: Any, value: Any) -> None:
    try:
        field.to_python(value)
    except (AttributeError, TypeError, ValueError) as error:  # some fields do not raise a ValidationError
        raise ValueError(f"{value!r} is not a valid value of {type(field).__name__}: {error}") from error


def _lookups(node: Any) -> Iterator[Any]:
    if isinstance(node, Lookup):
        yield node
    for inner in getattr(node, "get_source_expressions", list)():
        yield from _lookups(inner)


def _wrong(its: str, what: str, hint: str) -> Problem:
    message = f"{its} cannot be used: {what}"
    return Problem("delaytasks.E043", message if message.endswith(".") else f"{message}.", hint)


def _is_reverse(lookup: str, model: Any) -> bool:
    """Return whether a lookup follows a relation that is not a column of its model, to one row or to many."""
    meta = model._meta
    for part in lookup.split(LOOKUP_SEP):
        try:
            field = meta.pk if part == "pk" else meta.get_field(part)
        except FieldDoesNotExist:
            return False
        if not getattr(field, "concrete", False) or field.many_to_many:
            return True
        if not field.is_relation or field.related_model is None:
            return False
        meta = field.related_model._meta
    return False


def _depends_on_zone(lookup: str, model: Any) -> bool:
    """Return whether a lookup extracts a part of a datetime by the current time zone: "created_at__date"."""
    field = conditions.last_field(lookup, model)
    rest = lookup[len(conditions.field_path(lookup, model)) :].strip("_").split(LOOKUP_SEP)
    if not isinstance(field, models.DateTimeField) or not rest[0]:
        return False
    transform: Any = field.get_transform(rest[0])
    return bool(transform) and issubclass(transform, TimezoneMixin)
