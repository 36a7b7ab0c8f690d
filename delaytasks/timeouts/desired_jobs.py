"""Query the jobs that should exist: the rows of the model whose condition is true, with the job's key and due time.

SQL converts integer, text and UUID primary keys to the same text as Python. Other keys, and due times that need a
calendar, are computed in Python.
"""

import logging
import operator
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models import Case, DateTimeField, ExpressionWrapper, F, FloatField, Func, QuerySet, Value, When
from django.db.models.lookups import Range

from ..clock import to_ms
from ..db import dialects
from ..exceptions import BadInput
from ..jobs.subjects import pk_text
from ..validators import MAX_KEY
from .declarations import Declaration

logger = logging.getLogger("delaytasks")
_DUE = "delaytasks_due"
LAST_MS = to_ms(datetime(9999, 1, 1, tzinfo=UTC)) - 1  # a job is due from 1970 to 9998: see representable_sql()
_INTEGERS = (
    models.AutoField, models.BigAutoField, models.SmallAutoField, models.IntegerField, models.BigIntegerField,
    models.SmallIntegerField, models.PositiveIntegerField, models.PositiveBigIntegerField,
    models.PositiveSmallIntegerField,
)  # fmt: skip
_TEXTS = (models.CharField, models.SlugField)


def rows(declaration: Declaration, using: str) -> "QuerySet[Any]":
    """Return all rows of the model's table, including those that the model's own managers hide."""
    return declaration.concrete._base_manager.using(using).select_related(None).order_by()


def among(declaration: Declaration, pks: Sequence[Any], using: str) -> "QuerySet[Any]":
    """Return those of these rows that exist."""
    found = rows(declaration, using).filter(pk__in=pks)
    if len(pks) > 1 and all(isinstance(pk, int) for pk in pks):  # so that PostgreSQL reads only the range of a page
        found = found.filter(pk__gte=min(pks), pk__lte=max(pks))  # not pk__range: a relation as primary key lacks it
    return found


def matching(declaration: Declaration, found: "QuerySet[Any]") -> "QuerySet[Any]":
    """Return those of these rows whose condition is true and whose due time is not null."""
    found = found.filter(declaration.while_)
    return found.filter(**{f"{name}__isnull": False for name in (declaration.on, declaration.duration_field) if name})


def desired_sql(declaration: Declaration, pks: Sequence[Any], using: str) -> tuple[str, list[Any]]:
    """Return the SQL of a query of (primary key as text, due time in ms) for the matching rows, and its parameters.

    The due time is null if it cannot be computed or stored: such a row has no job.
    """
    in_python = declaration.calendar or declaration.computes_due_times
    text = None if in_python else _text_sql(declaration, "pk", connections[using].vendor)
    if text is None:
        return desired_table([(text, due_ms) for text, due_ms in _in_python(declaration, pks, using)], using)
    try:
        sql, params = _found_sql(declaration, pks, using)
    except EmptyResultSet:
        return desired_table([], using)
    # The outer names come from the CTE's column list: those of Django's query are not used.
    query = f"""WITH delaytasks_found (pk, due) AS MATERIALIZED ({sql})
        SELECT {text}, {representable_sql(due_ms_sql("due", connections[using].vendor))} FROM delaytasks_found"""
    return query, params


class _Key(Value):
    """Placeholder of the primary key in cached SQL. It is its own parameter, which _found_sql() replaces by the key."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return "%s", [self]


_kept: "WeakKeyDictionary[Declaration, dict[str, tuple[str, list[Any]]]]" = WeakKeyDictionary()


def _found_sql(declaration: Declaration, pks: Sequence[Any], using: str) -> tuple[str, list[Any]]:
    """Return Django's SQL of (primary key, due time) for the matching rows, and its parameters.

    The SQL for a single row is cached: each save needs it, and building it takes longer than executing it.
    """
    if len(pks) != 1 or pks[0] is None or declaration.pk.is_relation:
        return _compile(declaration, among(declaration, pks, using), using)
    kept = _kept.setdefault(declaration, {})
    if using not in kept:
        one = rows(declaration, using).filter(pk=_Key(None, output_field=declaration.pk))
        kept[using] = _compile(declaration, one, using)
    sql, params = kept[using]
    pk = declaration.pk.get_db_prep_value(pks[0], connections[using])
    return sql, [pk if isinstance(each, _Key) else each for each in params]


def _compile(declaration: Declaration, found: "QuerySet[Any]", using: str) -> tuple[str, list[Any]]:
    sql, params = _with_due(declaration, found).values_list("pk", _DUE).query.get_compiler(using).as_sql()
    return sql, list(params)


def _with_due(declaration: Declaration, found: "QuerySet[Any]") -> "QuerySet[Any]":
    due: Any = F(declaration.on)
    seconds: Any = _Seconds(due)
    span: Any = None
    length: Any = None  # of the span, in seconds
    if isinstance(declaration.span, timedelta):
        span, length = Value(declaration.span), Value(int(declaration.span.total_seconds()))
    elif declaration.duration_field:
        span, length = F(declaration.duration_field), _LengthSeconds(F(declaration.duration_field))
    if span is not None:
        move = operator.sub if declaration.is_before else operator.add
        due, seconds = _InUtc(move(_InUtc(due), span)), move(seconds, length)
    wrapped = _if_near(seconds, ExpressionWrapper(due, output_field=DateTimeField()))
    return matching(declaration, found).annotate(**{_DUE: wrapped})


class _InUtc(Func):
    """Convert a moment to naive UTC, or back. In another time zone, PostgreSQL may add days that have 23 hours."""

    template = "(%(expressions)s AT TIME ZONE 'UTC')"
    output_field = DateTimeField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="%(expressions)s", **context)


class _Seconds(Func):
    """A moment in whole seconds since 1970. PostgreSQL's `infinity` stays infinite."""

    template = "extract(epoch FROM %(expressions)s)"
    output_field = FloatField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "CAST(strftime('%%%%s', substr(%(expressions)s, 1, 19)) AS INTEGER)"
        return self.as_sql(compiler, connection, template=template, **context)


class _LengthSeconds(_Seconds):
    """The value of a DurationField in seconds. SQLite stores it in microseconds."""

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="(%(expressions)s / 1000000)", **context)


def _if_near(seconds: Any, moment: Any) -> Any:
    """Return the moment, or null if it is more than a day outside the range of due times.

    seconds   the moment in seconds since 1970, computed without overflow
    """
    low, high = -86_400, LAST_MS // 1000 + 86_400
    return Case(When(Range(seconds, (low, high)), then=moment), default=None, output_field=DateTimeField())


def representable_sql(ms: str) -> str:
    """Return the SQL of a due time in ms, or null if no job can have it."""
    return f"CASE WHEN {ms} BETWEEN 0 AND {LAST_MS} THEN {ms} END"


def desired_table(found: Sequence[tuple[str, int | None]], using: str) -> tuple[str, list[Any]]:
    """Return the SQL of a table with these pairs of (primary key as text, due time in ms), and its parameters."""
    if not found:
        return "SELECT CAST(NULL AS text), CAST(NULL AS bigint) WHERE 1 = 0", []
    return dialects.get_dialect(using).table(["text", "bigint"], found)


def due_ms_sql(due: str, vendor: str) -> str:
    """Return the SQL of a time in ms since 1970, rounded up as clock.to_ms() does."""
    if vendor == "postgresql":
        rounded = f"date_trunc('milliseconds', {due} + interval '999 microseconds')"
        return dialects.get_vendor(vendor).to_ms(rounded)
    seconds = f"CAST(strftime('%%s', substr({due}, 1, 19)) AS INTEGER)"
    microseconds = f"CAST(substr(substr({due}, 21) || '000000', 1, 6) AS INTEGER)"
    return f"({seconds} * 1000 + ({microseconds} + 999) / 1000)"


def _text_sql(declaration: Declaration, column: str, vendor: str) -> str | None:
    """Return the SQL of the primary key as Python writes it, or None if only Python can write it."""
    field = _own_field(declaration.pk)
    if type(field) in _INTEGERS or (type(field) is models.UUIDField and vendor == "postgresql"):
        return f"CAST({column} AS text)"
    if type(field) is models.UUIDField:  # stored without dashes
        parts = [
            f"substr({column}, {start}, {length})" for start, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
        ]
        return " || '-' || ".join(parts)
    if type(field) in _TEXTS and (field.max_length or MAX_KEY) + len(declaration.key_prefix) <= MAX_KEY:
        return column
    return None


def _own_field(field: Any) -> Any:
    """Return the field itself, or the one that a foreign key used as primary key refers to."""
    while field.is_relation:
        field = field.target_field
    return field


# -- in Python ----------------------------------------------------------------------------------


def _in_python(declaration: Declaration, pks: Sequence[Any], using: str) -> Iterator[tuple[str, int | None]]:
    if declaration.computes_due_times:
        yield from declaration.due_times(pks, using)
        return
    if declaration.calendar is None:
        found = _with_due(declaration, among(declaration, pks, using)).values_list("pk", _DUE)
    else:
        readable = {_DUE: _if_near(_Seconds(F(declaration.on)), F(declaration.on))}
        names = [name for name in ("pk", _DUE, declaration.duration_field) if name]
        found = matching(declaration, among(declaration, pks, using)).annotate(**readable).values_list(*names)
    for pk, *moments in found:
        text = key_text(declaration, pk)
        if text is not None:
            yield text, _due_ms(declaration, *moments)


def _due_ms(declaration: Declaration, moment: datetime | None, span: Any = None) -> int | None:
    """Return the due time in ms since 1970; None if there is none, or if it is outside the range of due times.

    span   the value of the DurationField, if the declaration names one
    """
    calendar = declaration.calendar
    if moment is not None and calendar is not None:
        span = span if declaration.duration_field else declaration.span
        try:
            moment = calendar.subtract(moment, span) if declaration.is_before else calendar.add(moment, span)
        except (BadInput, OverflowError):  # the calendar has too little open time
            return None
    due_ms = None if moment is None else to_ms(moment)
    return due_ms if due_ms is not None and 0 <= due_ms <= LAST_MS else None


def key_text(declaration: Declaration, pk: Any) -> str | None:
    """Return a primary key as text for its job's key. If a key cannot contain it, log a warning and return None."""
    try:
        text = pk_text(declaration.pk, declaration.label, pk)
        if len(declaration.key_of(text)) > MAX_KEY:
            raise BadInput(f"the key would have more than {MAX_KEY} characters.")
    except BadInput as error:
        logger.warning("%s: the row with the primary key %.80r has no job: %s", declaration.topic, pk, error)
        return None
    return text
