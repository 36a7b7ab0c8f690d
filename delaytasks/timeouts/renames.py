"""Give the jobs of a renamed model its new label, so that each row keeps its job, and the record of what has fired.

Only a topic that does not depend on the model's name, timeout(topic=...), has such jobs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, Value
from django.db.models.functions import Concat, Length, Substr

from ..jobs.subjects import Subject
from ..querysets import starts_with
from ..states import STORED_LIVE
from ..validators import MAX_KEY
from .declarations import Declaration


def is_installed(label: str) -> bool:
    """Return whether a model has this label. The label of a renamed model is that of none."""
    try:
        apps.get_model(label)
    except LookupError:
        return False
    return True


def rename_jobs(declaration: Declaration, using: str) -> None:
    """Change the keys and subjects of jobs that were made before the model was renamed, in the caller's transaction.

    A live job whose new key is live already stays as it is, and does not fire: see fire.py.
    """
    for label in _former_labels(declaration, using):
        jobs, prefix = _jobs(declaration, using), Subject(label, "").key
        new_key = Concat(Value(declaration.key_prefix), Substr("key", len(prefix) + 1))
        named = jobs.filter(subject_label=label, **starts_with(using, "key", prefix))
        named = named.annotate(new_key=new_key, length=Length("new_key")).filter(length__lte=MAX_KEY)
        # By state, as statements.LIVE, so that PostgreSQL searches by the key.
        others = jobs.filter(key=OuterRef("new_key"), state__in=STORED_LIVE).exclude(pk=OuterRef("pk"))
        free = named.filter(Q(ended_at__isnull=False) | ~Exists(others))
        free.update(key=F("new_key"), subject_label=declaration.label)


@contextmanager
def as_if_renamed(declaration: Declaration, using: str) -> Iterator[None]:
    """Show the jobs inside the block as rename_jobs() would leave them. Locks them only if the model was renamed."""
    if not _former_labels(declaration, using):
        yield
        return
    with transaction.atomic(using):
        rename_jobs(declaration, using)
        yield
        transaction.set_rollback(True, using)


def _former_labels(declaration: Declaration, using: str) -> list[str]:
    labels = _jobs(declaration, using).filter(subject_label__isnull=False).exclude(subject_label=declaration.label)
    return [each for each in labels.values_list("subject_label", flat=True).distinct() if not is_installed(each)]


def _jobs(declaration: Declaration, using: str) -> Any:
    return apps.get_model("delaytasks", "Job").objects.using(using).filter(topic=declaration.topic)
