"""The subject of a job: the model instance that it is about.

A job stores the model's label in lower case and the primary key as Python's text. There is no foreign key, so deleting
the subject leaves the job as it is, unless the handler was declared with on_subject_delete="cancel".
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.core.exceptions import ValidationError
from django.db.models import CompositePrimaryKey, Model

from .. import databases
from ..exceptions import BadInput, short_repr
from ..validators import MAX_KEY

if TYPE_CHECKING:
    from ..querysets import JobQuerySet


class Instance(Protocol):
    """An instance of a Django model.

    Not annotated as Model, of which a type checker without Django's stubs knows nothing. Only models have this method.
    """

    def get_deferred_fields(self) -> Any: ...


class Subject(NamedTuple):
    """The columns of a job that identify its subject."""

    label: str  # of the concrete model, in lower case: "shop.order"
    pk: str

    @property
    def key(self) -> str:
        """The default key of the subject's jobs: "order:1042"."""
        return f"{self.label.rpartition('.')[2]}:{self.pk}"


def to_subject(instance: object, *, saved: bool = False) -> Subject:
    """Return the subject of a model instance. Proxy models have the subject of their concrete model.

    saved   also refuse an instance that has a primary key but was never saved

    Raises BadInput for anything else than an instance, an instance without primary key (unsaved or deleted), and a
    model with a composite primary key.
    """
    if not isinstance(instance, Model):
        raise BadInput(f"subject is {short_repr(instance)}: give an instance of a model, or use a key.")
    label = model_label(instance._meta.model)  # not type(): the instance may be lazy, such as request.user
    field = instance._meta.pk
    if isinstance(field, CompositePrimaryKey):
        raise BadInput(
            f"subject is a {label}, whose primary key is composite: use a key, and put the values into body."
        )
    if instance.pk is None or (saved and instance._state.adding):
        raise BadInput(f"subject is a {label} that is not in the database: it was never saved, or it was deleted.")
    return Subject(label, pk_text(field, label, instance.pk))


def model_label(model: type[Model]) -> str:
    """Return the label that jobs store for this model."""
    return str(model._meta.concrete_model._meta.label_lower)  # type: ignore[union-attr]


def pk_text(field: Any, label: str, pk: Any) -> str:
    """Return a primary key as text, as str() does. Raises BadInput if a job cannot store it."""
    try:
        value = _as_stored(field, field.to_python(pk))
        text = str(value)
        is_readable = field.to_python(text) == value
    except (ValidationError, ValueError):
        is_readable, text = False, str(pk)
    if not is_readable or not 0 < len(text) <= MAX_KEY or "\0" in text:
        raise BadInput(
            f"subject is a {label} with the primary key {short_repr(pk)}: its text must have 1 to {MAX_KEY} characters "
            "and be readable as a primary key again. Use a key."
        )
    return text


def _as_stored(field: Any, value: Any) -> Any:
    """Return an equal value in the form that the database returns, such as Decimal("1.00") for Decimal("1")."""
    while field.is_relation:
        field = field.target_field
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, Decimal) and value.is_finite() and value == round(value, field.decimal_places):
        return round(value, field.decimal_places)
    return value


def jobs_of(subject: Instance, *, using: str | None = None) -> "JobQuerySet":
    """Return every job of this subject, live and ended, of all topics: a QuerySet of Job, newest first.

    subject   a model instance; its jobs are those that were scheduled with it as their subject
    using     str, a database alias; None: the router's database for writes

    Raises BadInput, as schedule() does for a subject.
    """
    from ..models import Job  # here, so that this module can be imported before Django's apps are loaded

    label, pk = to_subject(subject)
    jobs: JobQuerySet = Job.objects.using(databases.alias(using))
    return jobs.filter(subject_label=label, subject_pk=pk).order_by("-id")
