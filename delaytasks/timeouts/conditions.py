"""Analyze a Q: list its fields and values, and convert it to a text that is the same in each process."""

import enum
import re
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any

from django.db.models import DateTimeField, F, GeneratedField, Model, Q, QuerySet, Subquery, Value
from django.db.models.constants import LOOKUP_SEP
from django.db.models.expressions import BaseExpression, Col
from django.db.models.query import RawQuerySet
from django.db.models.sql import Query
from django.utils.dateparse import parse_date, parse_datetime

UNORDERED = (set, frozenset)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def children(condition: Q) -> Iterator[Any]:
    """Yield the leaves of a Q: pairs (lookup, value), and expressions."""
    for child in condition.children:
        if isinstance(child, Q):
            yield from children(child)
        else:
            yield child


def leaves(condition: Q) -> Iterator[Any]:
    """Yield the leaves of a Q, and of each Q in its values and expressions, such as When(state="open", then=...)."""
    for child in children(condition):
        yield child
        yield from _inner_leaves(child[1] if isinstance(child, tuple) else child)


def _inner_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Q):
        yield from leaves(value)
    elif isinstance(value, list | tuple | set | frozenset | BaseExpression):
        for each in value.get_source_expressions() if isinstance(value, BaseExpression) else value:
            yield from _inner_leaves(each)


def expressions(condition: Q) -> Iterator[Any]:
    """Yield each F, expression and query set in a Q, including nested ones. Evaluates none."""
    for child in children(condition):
        value = child[1] if isinstance(child, tuple) else child
        for each in value if isinstance(value, list | tuple | set | frozenset) else [value]:
            yield from _nested(each)


def _nested(value: Any) -> Iterator[Any]:
    if isinstance(value, Q):
        yield from expressions(value)
    elif isinstance(value, F | BaseExpression | QuerySet | RawQuerySet):
        yield value
        for inner in value.get_source_expressions() if isinstance(value, BaseExpression) else ():
            yield from _nested(inner)


def has_query(condition: Q) -> bool:
    """Return whether a Q contains a query, which its repr() would execute."""
    return any(isinstance(each, QuerySet | RawQuerySet | Subquery | Query) for each in expressions(condition))


def naive(condition: Q, model: type[Model]) -> Iterator[Any]:
    """Yield the values without time zone that a Q compares with DateTimeFields."""
    for child in leaves(condition):
        if isinstance(child, tuple) and isinstance(last_field(child[0], model), DateTimeField):
            given = child[1] if isinstance(child[1], list | tuple | set | frozenset) else [child[1]]
            yield from (value for value in given if _is_naive(value))
    for each in expressions(condition):
        if isinstance(each, Value) and isinstance(each.value, datetime) and _is_naive(each.value):
            yield each.value


def _is_naive(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = parse_datetime(value) or parse_date(value)
        except ValueError:  # validation reports the field's own error
            return False
    return isinstance(value, date) and not (isinstance(value, datetime) and value.utcoffset() is not None)


def values(condition: Q) -> Iterator[Any]:
    """Yield the values in a Q, including those in lists, dicts and expressions."""
    given = [child[1] if isinstance(child, tuple) else child for child in children(condition)]
    while given:
        value = given.pop(0)
        if isinstance(value, list | tuple | set | frozenset):
            given += value
        elif isinstance(value, dict):
            given += [*value, *value.values()]
        elif isinstance(value, Value):
            given.append(value.value)
        elif isinstance(value, BaseExpression):
            given += value.get_source_expressions()
        elif isinstance(value, Q):
            yield from values(value)
        else:
            yield value


def without_fixed_text(condition: Q) -> Iterator[Any]:
    """Yield the values in a Q whose repr() differs between processes: it has a memory address, or the order of a set.

    canonical() uses the repr() of an expression, and sorts only the sets outside of expressions.
    """
    for value in values(condition):
        if not isinstance(value, str | Model | F | QuerySet | RawQuerySet) and ADDRESS.search(repr(value)):
            yield value
    for expression in expressions(condition):
        for child in _inner_leaves(expression):
            if isinstance(child, tuple) and isinstance(child[1], UNORDERED):
                yield child[1]


def paths(condition: Q, model: type[Model]) -> set[str]:
    """Return the paths of the fields that a Q uses, without lookups and transforms: {"customer__active"}."""
    names = lookups(condition) | referenced(condition)
    found = {path for name in names if (path := field_path(name, model))}
    return found.union(*(_sources(path, model) for path in found))


def lookups(condition: Q) -> set[str]:
    """Return the lookups of a Q, including those of a Q inside a value or an expression."""
    return {child[0] for child in leaves(condition) if isinstance(child, tuple)}


def _sources(path: str, model: type[Model]) -> set[str]:
    """Return the paths of the fields from which the database computes a generated field; of another field, none."""
    field = last_field(path, model)
    if not isinstance(field, GeneratedField):
        return set()
    parent = path.removesuffix(field.name)
    found = [field.expression.resolve_expression(Query(field.model), allow_joins=False)]  # type: ignore[attr-defined]
    names = set()
    while found:
        each = found.pop()
        names |= {each.target.name} if isinstance(each, Col) else set()
        found += [inner for inner in each.get_source_expressions() if inner is not None]
    return {parent + name for name in names}


def referenced(condition: Q) -> set[str]:
    """Return the field paths in the F expressions of a Q."""
    return {str(each.name) for each in expressions(condition) if isinstance(each, F)}  # type: ignore[attr-defined]


def last_field(lookup: str, model: type[Model]) -> Any:
    """Return the last field that a lookup names, or None."""
    field, meta = None, model._meta
    for part in filter(None, field_path(lookup, model).split(LOOKUP_SEP)):
        field = meta.pk if part == "pk" else meta.get_field(part)
        meta = field.related_model._meta if field.is_relation and field.related_model else meta
    return field


def field_path(lookup: str, model: type[Model]) -> str:
    """Return the part of a lookup that names fields: "customer__active" of "customer__active__in"."""
    found: list[str] = []
    meta: Any = model._meta
    for part in lookup.split(LOOKUP_SEP):
        try:
            field = meta.pk if part == "pk" else meta.get_field(part)
        except Exception:  # a lookup or a transform; or an unknown field, which validation reports
            break
        found.append(part)
        if not field.is_relation or field.related_model is None:
            break
        meta = field.related_model._meta
    return LOOKUP_SEP.join(found)


def canonical(value: Any) -> str:
    """Convert a Q to a text that is the same in all processes and all versions of Python."""
    if isinstance(value, Q):
        parts = [canonical(child) for child in value.children]
        return f"{'NOT ' if value.negated else ''}({f' {value.connector} '.join(parts)})"
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return f"{value[0]}={canonical(value[1])}"
    if isinstance(value, UNORDERED):
        return f"[{', '.join(sorted(map(canonical, value)))}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(canonical, value))}]"
    if isinstance(value, enum.Enum):
        return canonical(value.value)
    if isinstance(value, Model):
        return f"{value._meta.label_lower}:{value.pk!r}"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, str):
        return repr(str(value))  # a subclass of str as a plain str
    return repr(value)
