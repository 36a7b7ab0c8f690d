"""Sync the live jobs of rows with the model's table.

One statement finds the differences, which are rare. Then up to three statements make, move and cancel jobs.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import transaction

from .. import databases, signals, tracing
from ..db.transitions import StoredJob
from ..exceptions import BadInput
from ..jobs import on_commit
from . import applied_declarations, statements
from .declarations import Declaration
from .desired_jobs import key_text, rows
from .statements import Difference


class Synced(NamedTuple):
    """How many jobs were made, moved and cancelled, and the primary keys of the rows that others had locked."""

    made: int = 0
    moved: int = 0
    cancelled: int = 0
    locked_pks: Sequence[Any] = ()


def sync(
    declaration: Declaration, pks: Iterable[Any], *, using: str, lock: bool = True, skip_locked: bool = False
) -> Synced:
    """Make, move and cancel the jobs of these rows according to the table, in the caller's transaction.

    pks          primary keys, or their texts; the rows need not exist: the jobs of deleted rows are cancelled
    lock         True: lock the rows first, in key order, until the transaction ends. False: the caller has locked them
    skip_locked  True: leave out the rows that others have locked, or whose jobs they have, and return their primary
                 keys as locked_pks. False: wait for them

    Never changes a job that is running, or whose declared time is correct already: the due time of a retry, of a snooze
    or of a job that a person moved stays. Changes no job while the declaration's fingerprint is not the applied one.

    Raises BadInput if the database has no jobs or not the model's table.
    """
    if using not in aliases_of(declaration):
        raise BadInput(
            f"{declaration.topic}: the rows of {declaration.label} in the database {using!r} have no jobs. Jobs are in "
            f"{', '.join(databases.aliases())}; add the database to DELAYTASKS['DATABASES']."
        )
    with transaction.atomic(using, savepoint=False):
        found = keys_of(declaration, pks)
        locked: list[Any] = []
        if lock and found:
            found, locked = lock_rows(declaration, found, using, skip_locked=skip_locked)
        due_times = declaration.before_sync([pk for _, pk in found], using, noticed=skip_locked)
        gated = not applied_declarations.is_automatic()
        different = statements.differences(declaration, found, using, gated=gated, due_times=due_times)
        synced = apply_differences(declaration, different, using, skip_locked=skip_locked)
        by_text = dict(found)
        return synced._replace(locked_pks=[*locked, *(by_text[text] for text in synced.locked_pks)])


def aliases_of(declaration: Declaration) -> list[str]:
    """Return the databases whose rows have jobs: those that have jobs and the model's table."""
    return [
        alias for alias in databases.aliases()
        if declaration.using in (None, alias) and databases.has_model(alias, declaration.concrete)
    ]  # fmt: skip


def keys_of(declaration: Declaration, pks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return (text, primary key) for each, without duplicates and without those that a job's key cannot contain."""
    found: dict[str, Any] = {}
    for pk in pks:
        try:
            value = declaration.pk.to_python(pk)
        except ValidationError:
            continue
        text = key_text(declaration, value)
        if text is not None:
            found[text] = value
    return list(found.items())


def lock_rows(
    declaration: Declaration, keys: Sequence[tuple[str, Any]], using: str, *, skip_locked: bool
) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Lock rows in key order. Return the keys to sync, deleted rows included, and the keys that others have locked."""
    wanted = [pk for _, pk in keys]
    held = _locked_pks(declaration, lockable(declaration, using, skip_locked=skip_locked).filter(pk__in=wanted), using)
    missing = [pk for pk in wanted if pk not in held] if skip_locked else []
    locked = set(rows(declaration, using).filter(pk__in=missing).values_list("pk", flat=True)) if missing else set()
    return [(text, pk) for text, pk in keys if pk not in locked], sorted(locked)


def _locked_pks(declaration: Declaration, found: Any, using: str) -> set[Any]:
    """Lock the rows of a query and return their primary keys, without model instances."""
    compiler = found.query.get_compiler(using)
    read = compiler.results_iter()
    columns = [getattr(column, "target", None) for column, _, _ in compiler.select]
    index = columns.index(declaration.pk)
    return {row[index] for row in read}


def lockable(declaration: Declaration, using: str, *, skip_locked: bool, whole: bool = False) -> Any:
    """Return a query that locks the model's rows, with their rows in parent models' tables, in key order.

    whole   True: read all columns

    It uses NO KEY UPDATE, which lets others insert rows that refer to these.
    """
    parents = _parent_links(declaration.concrete)
    found = rows(declaration, using).order_by("pk")
    locking = found.select_for_update(skip_locked=skip_locked, of=(*parents, "self"), no_key=True)
    if whole:
        return locking
    keys = {parent._meta.pk.name for parent in declaration.concrete._meta.get_parent_list()}
    return locking.only("pk", *keys)  # other columns may have values that Python cannot read: PostgreSQL's infinity


def _parent_links(model: Any) -> list[str]:
    """Return the paths of the links to the models that a model inherits from, in the order in which a save writes them.

    For example ["place_ptr__base_ptr", "place_ptr"].
    """
    found = []
    for parent, link in model._meta.parents.items():
        if link is not None and link.model is model:  # not a link that it inherits
            found += [*(f"{link.name}__{each}" for each in _parent_links(parent)), link.name]
    return found


def _make(declaration: Declaration, new: Sequence[Difference], using: str) -> list[StoredJob]:
    with tracing.scheduling(declaration.topic) as span:
        made = statements.insert(declaration, new, using, span.context)
        span.scheduled_many(len(made))
        return made


def apply_differences(
    declaration: Declaration, different: Sequence[Difference], using: str, *, skip_locked: bool
) -> Synced:
    """Make, move and cancel jobs. The mirror is updated and signals are sent on commit.

    With skip_locked, the result has the primary keys, as text, of the rows whose jobs are locked.
    """
    older = [row for row in different if row.change == "move" and row.is_older]
    new = [row for row in different if row.change == "make"] + older
    wrong = [row for row in different if row.change == "move" and not row.is_older]
    ended = [row for row in different if row.change == "cancel"] + older
    unmet = [row.job_id for row in ended if row.job_id is not None]
    cancelled = statements.cancel(unmet, using, skip_locked=skip_locked) if unmet else []
    moved = statements.move(declaration, wrong, using, skip_locked=skip_locked) if wrong else []
    changed_ids = {job.id for job in cancelled} | {job.id for job in moved}
    locked = [row.pk for row in different if row.job_id is not None and row.job_id not in changed_ids]
    made = _make(declaration, new, using) if new else []
    on_commit.cancelled(using, cancelled)
    on_commit.stored(using, moved, signals.job_rescheduled, mark=True)  # first: they may be due before the mirror knows
    on_commit.stored(using, made)
    return Synced(len(made), len(moved), len(cancelled), locked if skip_locked else ())
