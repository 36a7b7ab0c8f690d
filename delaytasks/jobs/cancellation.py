"""Cancel many jobs: all that match, with cancel_many(), or those of a deleted subject, with on_subject_delete="cancel".

Receivers of post_delete cancel the jobs of deleted subjects. Only models whose handlers require it have a receiver,
because a receiver prevents Django's fast deletes: Django then loads the rows and deletes them in batches, instead of by
one DELETE.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from django.apps import apps
from django.db import transaction
from django.db.models import Model
from django.db.models.signals import post_delete

from .. import databases, handlers
from ..db import transitions
from ..db.retries import in_transaction
from ..db.transitions import Cancel, Cancelled
from ..exceptions import BadInput
from ..querysets import starts_with
from ..states import STORED_LIVE, State
from ..validators import check_key, check_topic
from . import next_runs, on_commit, series
from .inputs import check_actor, check_known
from .storage import RACES
from .subjects import Instance, to_subject

PAGE = 1000  # jobs cancelled in one statement
# The default of `subject`. None is refused: a null foreign key must not cancel the whole topic.
ANY_SUBJECT: Any = object()


class CancelCounts(NamedTuple):
    """The result of cancel_many(): numbers of jobs.

    cancelled   cancelled by this call
    running     not cancelled, because their handlers are running
    ended       finished, dead, or cancelled by somebody else while this call was working
    """

    cancelled: int
    running: int
    ended: int


def cancel_many(
    *,
    topic: str | None = None,
    key_prefix: str | None = None,
    subject: Instance = ANY_SUBJECT,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> CancelCounts:
    """Cancel all live jobs that match all of the given conditions. Return how many were cancelled.

    topic        str: the topic of the jobs
    key_prefix   str: the beginning of their keys; needs topic
    subject      a model instance: the subject of the jobs, as for jobs_of(). If it is left out, jobs with any subject
                 and without one match; None is refused
    using        str, a database alias; None: the router's database for writes
    by, reason   str: who requested it and why, stored in each job's event; each one line, up to 255 characters

    Returns CancelCounts(cancelled, running, ended), three ints. The jobs that match when it begins are
    cancelled in pages of 1,000, one statement each. In a transaction all of it takes effect with the
    transaction. Outside, each page is a transaction of its own, so that no lock is held for long: after
    an error call it again.

    Series that match end too. The key of a series is the key that was given to schedule().

    Never disturbs a job whose handler is running; its next run (on_conflict="again") is withdrawn.

    Raises BadInput (no condition, a key_prefix without topic, or None as the subject), UnknownTopic, BadTopic, BadKey.
    """
    using = databases.alias(using)
    check_actor(by)
    check_actor(reason, what="reason")
    if topic is None and (subject is ANY_SUBJECT or key_prefix is not None):
        raise BadInput("cancel_many takes topic, subject, or both; key_prefix narrows a topic.")
    label, pk = (None, None) if subject is ANY_SUBJECT else to_subject(subject)
    if topic is not None:
        topic = check_topic(topic)
        check_known(using, topic)
    if key_prefix is not None:
        key_prefix = check_key(key_prefix)
    _end_series(using, topic, key_prefix, label, pk)
    return cancel_jobs(using, topic=topic, key_prefix=key_prefix, label=label, pk=pk, by=by, reason=reason)


def cancel_jobs(
    using: str, *, topic: str | None, key_prefix: str | None = None, label: str | None = None, pk: str | None = None,
    by: str = "", reason: str = "", also: str = "",
) -> CancelCounts:  # fmt: skip
    """Cancel jobs as cancel_many(), but without checking the arguments and without ending series.

    also   as for transitions.cancel_each()
    """
    return cancel_ids(using, _matching(using, topic, key_prefix, label, pk), by=by, reason=reason, also=also)


def cancel_ids(using: str, ids: Sequence[int], *, by: str, reason: str, also: str = "") -> CancelCounts:
    """Cancel the jobs with these ids, which must be sorted, as cancel_jobs() does."""
    pages = (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))
    counts = [in_transaction(using, partial(_cancel_page, using, page, by, reason, also)) for page in pages]
    return CancelCounts(*map(sum, zip(*counts, strict=True))) if counts else CancelCounts(0, 0, 0)


def _end_series(using: str, topic: str | None, key_prefix: str | None, label: str | None, pk: str | None) -> None:
    """End the series that match, so that they make no more jobs."""
    conditions = {"topic": topic, "subject_label": label, "subject_pk": pk}
    if key_prefix is not None:
        conditions |= starts_with(using, "series_key", key_prefix)
    series.delete_matching(using, **{name: value for name, value in conditions.items() if value is not None})


def _matching(using: str, topic: str | None, key_prefix: str | None, label: str | None, pk: str | None) -> list[int]:
    """Return the ids of the live jobs that match, sorted."""
    from ..models import Job

    jobs = Job.objects.using(using)
    if topic is not None:
        jobs = jobs.filter(topic=topic) if key_prefix is None else jobs.key_starts(key_prefix, topics=[topic])
    if label is not None:
        jobs = jobs.filter(subject_label=label, subject_pk=pk)
    return sorted(jobs.live().values_list("id", flat=True))  # for ORDER BY, PostgreSQL might scan the primary key


def _cancel_page(using: str, ids: Sequence[int], by: str, reason: str, also: str) -> CancelCounts:
    cancelled: list[Cancelled] = []
    others, states = set(ids), dict.fromkeys(ids, int(State.DELAYED))
    for number in range(RACES):  # a job that was running may wait again before its state is read
        cancels = (Cancel(i, by, reason) for i in others)
        cancelled += transitions.cancel_each(using, cancels, skip_locked=number > 0, also=also)
        others -= {each.id for each in cancelled}
        next_runs.withdraw(using, others, by=by, reason=reason)
        states = _states(using, others)
        if State.DELAYED not in states.values():
            break
    on_commit.cancelled(using, cancelled)
    running = sum(state in STORED_LIVE for state in states.values())
    return CancelCounts(len(cancelled), running, len(ids) - len(cancelled) - running)


def _states(using: str, ids: set[int]) -> dict[int, int]:
    from ..models import Job

    return dict(Job.objects.using(using).filter(id__in=ids).values_list("id", "state")) if ids else {}


# -- deleted subjects ---------------------------------------------------------------------------


def cancel_on_delete(topic: str, model: type[Model]) -> None:
    """From now on, cancel the topic's jobs about an instance of the model, or of its proxies, when it is deleted."""
    for each in apps.get_models():
        if each._meta.concrete_model is model._meta.concrete_model:
            uid = f"delaytasks.subject.{topic}"
            post_delete.connect(partial(_cancel_of_deleted, topic), sender=each, weak=False, dispatch_uid=uid)


def _cancel_of_deleted(topic: str, *, instance: Model, using: str, **_: Any) -> None:
    """Cancel the topic's live jobs about the instance, in the transaction of its delete. Receiver of post_delete.

    Jobs in another database are cancelled after the commit of the delete, which may still be rolled back.
    """
    try:
        label, pk = to_subject(instance)
    except BadInput:  # no job can be about it, and it can be deleted nevertheless
        return

    def cancel(alias: str) -> None:
        _end_series(alias, topic, None, label, pk)
        cancel_jobs(alias, topic=topic, label=label, pk=pk)

    for alias in _aliases_of_jobs(using, type(instance)):
        if alias == using:
            cancel(alias)
        else:
            transaction.on_commit(partial(cancel, alias), using=using, robust=True)


def _aliases_of_jobs(using: str, model: type[Model]) -> list[str]:
    """Return the databases whose jobs may be about a row of the database `using`.

    schedule() without using= writes to the router's database, also if the row's own database has jobs. If both have
    jobs and the model's table, each database's jobs are about its own rows, as for RunningJob.subject.
    """
    aliases, home = databases.aliases(), databases.write_alias()
    has_own_rows = using in aliases and databases.has_model(home, model)
    return [alias for alias in aliases if alias == using or (alias == home and not has_own_rows)]


def connect_deletes() -> None:
    """Connect the receivers of all handlers with on_subject_delete="cancel". Called when all models are loaded."""
    for topic in handlers.handled():
        connect_delete(topic)


def connect_delete(topic: str) -> None:
    handler = handlers.find(topic)
    if handler is None or handler.on_subject_delete != "cancel":
        return
    try:
        cancel_on_delete(topic, apps.get_model(handler.subject or ""))
    except (LookupError, ValueError):  # the check delaytasks.E020 reports it
        return
