"""Sync jobs on Django's signals, in the caller's transaction. Triggers and reconciliation find other changes.

post_save is received from all models, because proxies and child models send their own class. post_delete is received
only from the declared models, their proxies and child models, because a receiver disables Django's fast deletes.
"""

from collections.abc import Collection, Iterable
from typing import Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model
from django.db.models.signals import post_delete, post_save

from ..db.retries import retry_conflicts
from . import declarations
from .declarations import Declaration
from .desired_jobs import rows
from .sync import aliases_of, sync

UID = "delaytasks.timeouts"


def connect(declaration: Declaration) -> None:
    """Connect the receivers for a declaration. connect_all() calls this again when all models are loaded."""
    post_save.connect(on_save, dispatch_uid=UID)
    if not apps.models_ready:
        return
    for model in apps.get_models():
        if issubclass(model, declaration.concrete):
            post_delete.connect(on_delete, sender=model, dispatch_uid=UID)


def connect_all() -> None:
    for declaration in declarations.registered():
        connect(declaration)


def disconnect() -> None:
    """Disconnect all receivers. For tests."""
    post_save.disconnect(dispatch_uid=UID)
    for model in apps.get_models():
        post_delete.disconnect(sender=model, dispatch_uid=UID)


def on_save(
    *, sender: type[Model], instance: Model, created: bool, raw: bool = False, using: str = DEFAULT_DB_ALIAS,
    update_fields: Collection[str] | None = None, **_: Any,
) -> None:  # fmt: skip
    """Sync the jobs of a saved row. Does nothing if no saved field is watched, and for fixtures (raw)."""
    for declaration in () if raw else declarations.affected_by(sender):
        if created or update_fields is None or not declaration.watched_names.isdisjoint(update_fields):
            _sync(declaration, _pks(declaration, instance, using), using)


def on_delete(*, sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    """Cancel the jobs of a deleted row."""
    for declaration in declarations.affected_by(sender):
        if isinstance(instance, declaration.concrete):
            _sync(declaration, _pks(declaration, instance, using), using)


def _pks(declaration: Declaration, instance: Model, using: str) -> Iterable[Any]:
    """Return the primary keys of the declared model's rows for an instance of it, of a child or of a parent."""
    if isinstance(instance, declaration.concrete):
        return [getattr(instance, declaration.pk.attname)]
    parent: Any = type(instance)._meta.concrete_model
    model: Any = declaration.concrete
    links = []
    while model is not parent:
        links.append(model._meta.get_ancestor_link(parent))
        model = links[-1].related_model._meta.concrete_model
    if all(link.primary_key for link in links):
        return [instance.pk]
    path = "__".join(link.name for link in links)
    return list(rows(declaration, using).filter(**{path: instance.pk}).values_list("pk", flat=True))


def _sync(declaration: Declaration, pks: Iterable[Any], using: str) -> None:
    """Sync in the caller's transaction, which holds the locks; without one, lock the rows in a new transaction."""
    if using not in aliases_of(declaration):
        return
    if connections[using].in_atomic_block:
        sync(declaration, pks, using=using, lock=False)
    else:
        retry_conflicts(lambda: sync(declaration, pks, using=using), using)
