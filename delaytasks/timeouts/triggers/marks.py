"""Drain the marks of changed rows: sync the jobs of each marked row, then delete its marks.

Any number of processes may do this at the same time: each page of marks is locked by one of them. A row that is locked
is skipped and keeps its mark, because the changes of the transaction that locks it are not visible yet.
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import DecimalException
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import connections, transaction

from ...db import dialects
from ...db.retries import is_retryable, retry_conflicts, waited_too_long
from ...models import Declaration as DeclarationRow
from ...models import TimeoutMark
from .. import applied_declarations
from ..declarations import Declaration, declarations, find
from ..sync import sync
from .watched import Dependent, Watched, watched

logger = logging.getLogger("delaytasks")
PAGE = 1000  # the most marks, or rows that refer to marked rows, in one transaction
LOCK_MS = 100  # how long a pass waits for a lock: the guard's thread also makes due jobs ready
PASS_SECONDS = 0.3  # of one pass of the guard, whose thread also makes due jobs ready
_positions: dict[str, int] = {}  # alias -> id of the last mark read, if the last pass ran out of time


def add(declaration: Declaration, pks: Iterable[Any], using: str) -> None:
    """Mark rows of a declaration's model that are locked now, so that they are synced later.

    Writes in the caller's transaction. The table need not have triggers.
    """
    table_name = declaration.concrete._meta.db_table
    TimeoutMark.objects.using(using).bulk_create([TimeoutMark(table_name=table_name, row_pk=str(pk)) for pk in pks])


def drain_for_a_while(using: str) -> None:
    """Drain marks for about 0.3 seconds, starting where the last call stopped. Called by the guard."""
    drain(using, seconds=PASS_SECONDS)


def drain(using: str, *, seconds: float = math.inf) -> int:
    """Process all marks once, or as many as fit into `seconds`. Return how many were deleted.

    The marks of rows that are locked, or that cannot be synced now, are kept for the next call.
    """
    tables = _drained_tables(using)
    deadline, after, deleted = time.monotonic() + seconds, _positions.pop(using, 0), 0
    while tables:
        page = retry_conflicts(functools.partial(_drain_page, using, tables, after), using)
        deleted += page.deleted
        after = after if page.unfinished else page.last_id
        if page.size < PAGE and not page.unfinished:
            break
        if time.monotonic() > deadline:
            _positions[using] = after
            break
    return deleted


def _drained_tables(using: str) -> dict[str, Watched]:
    """Return the watched tables, except those with a declaration that is applied with another fingerprint.

    Marks of such a table wait for a process with that fingerprint. This process would delete them without a sync.
    """
    if not declarations() or not TimeoutMark.objects.using(using).exists():
        return {}
    tables = watched(using)
    others = _applied_otherwise({topic for table in tables.values() for topic in table.topics}, using)
    return {name: table for name, table in tables.items() if table.topics.isdisjoint(others)}


def _applied_otherwise(topics: Iterable[str], using: str) -> set[str]:
    if applied_declarations.is_automatic():
        return set()
    rows = DeclarationRow.objects.using(using).filter(topic__in=topics).values_list("topic", "fingerprint")
    return {topic for topic, fingerprint in rows if (own := find(topic)) is None or own.fingerprint != fingerprint}


class Page(NamedTuple):
    """The result of a page of marks.

    unfinished   True: more rows refer to the marked rows; the marks store where to continue
    """

    size: int
    last_id: int
    deleted: int
    unfinished: bool


def _drain_page(using: str, tables: Mapping[str, Watched], after: int) -> Page:
    with transaction.atomic(using):
        dialects.wait_at_most(using, LOCK_MS)
        marks = TimeoutMark.objects.using(using).filter(table_name__in=list(tables), id__gt=after).order_by("id")
        page = list(marks.select_for_update(skip_locked=True)[:PAGE])
        groups: dict[tuple[str, str, bool], list[TimeoutMark]] = {}
        for mark in page:
            groups.setdefault((mark.table_name, repr(mark.position), mark.row_pk is None), []).append(mark)
        results = [_Group(using, tables[group[0].table_name], group).drain() for group in groups.values()]
        done = [mark.pk for result in results for mark in result.done]
        TimeoutMark.objects.using(using).filter(pk__in=done).delete()
    last_id = page[-1].pk if page else after
    return Page(len(page), last_id, len(done), any(result.advanced for result in results))


class Result(NamedTuple):
    done: Sequence[TimeoutMark] = ()
    advanced: bool = False


class _Group:
    """Marks of one table with the same position: these rows, or all rows of the table."""

    def __init__(self, using: str, table: Watched, marks: Sequence[TimeoutMark]) -> None:
        self.using, self.table, self.marks = using, table, marks
        self.position = marks[0].position
        self.is_all = marks[0].row_pk is None

    def drain(self) -> Result:
        if not self.is_all and self.position is None:
            return self._sync_rows()
        return self._sync_dependents(self.marks)

    def _sync_rows(self) -> Result:
        """Sync the marked rows themselves, then the rows that refer to them. Locked rows keep their marks."""
        keys = {mark: self._to_python(mark) for mark in self.marks}
        known = [key for key in keys.values() if key is not None]
        locked: set[Any] = set()
        for each in self.table.dependents:
            if not each.path:
                _, left = self._sync(each, lambda: known) or (known, known)
                locked.update(left)
        return self._sync_dependents([mark for mark, key in keys.items() if key is None or key not in locked])

    def _to_python(self, mark: TimeoutMark) -> Any:
        """Return the mark's primary key as Django reads it, or None (and log it) if it is not valid for the table."""
        try:
            return self.table.to_python(mark.row_pk or "")
        except (ValidationError, DecimalException):
            logger.warning("timeouts: no row of %s can have the key %.80r", mark.table_name, mark.row_pk)
            return None

    def _sync_dependents(self, marks: Sequence[TimeoutMark]) -> Result:
        """Sync at most a page of the rows that refer to the marked ones. Store the position if more rows are left."""
        begin_name, begin_key = self.position or ("", None)
        keys = None if self.is_all else [key for mark in marks if (key := self._to_python(mark)) is not None]
        room = PAGE
        for each in self.table.dependents:
            if each.name < begin_name or (not each.path and not self.is_all):
                continue
            after = begin_key if each.name == begin_name else None
            first = each.declaration.pk.to_python(after)
            synced = self._sync(each, functools.partial(each.page, keys, first, room, self.using))
            if synced is None:
                return Result()
            found, left = synced
            add(each.declaration, left, self.using)
            room -= len(found)
            if not room:
                return self._remember(marks, [each.name, str(found[-1])])
        return Result(done=marks)

    def _sync(
        self, dependent: Dependent, find: Callable[[], Sequence[Any]]
    ) -> tuple[Sequence[Any], Sequence[Any]] | None:
        """Sync the rows with the primary keys find(). Return these, and those of the locked rows.

        Returns None if the rows cannot be read now, for example because a column is not migrated yet, or because a
        migration has locked the table. The savepoint lets the transaction go on with the marks of other tables.
        """
        declaration, using = dependent.declaration, self.using
        try:
            with transaction.atomic(using):
                found = find()
                return found, sync(declaration, found, using=using, skip_locked=True).locked_pks if found else ()
        except Exception as error:
            if is_retryable(error) or not connections[using].is_usable():
                raise
            level = logging.WARNING
            if waited_too_long(error):
                level = logging.INFO
                dialects.wait_at_most(using, 5)  # for the other rows of this page: the table may be locked
            message = "%s: %s changed rows could not be synced, trying again: %s"
            logger.log(level, message, declaration.topic, len(self.marks), error)
            return None

    def _remember(self, marks: Sequence[TimeoutMark], position: list[str]) -> Result:
        TimeoutMark.objects.using(self.using).filter(pk__in=[mark.pk for mark in marks]).update(position=position)
        return Result(advanced=True)
