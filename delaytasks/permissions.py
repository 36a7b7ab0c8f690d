"""Permissions of staff: which topics a user may see, and what they may do there.

Used by the admin, the API and bulk changes. Django's permissions cover the actions: view, operate (which
requires view) and manage. This module restricts them to topics and tells which topics require a reason.

A topic that names groups in `visible_to` is visible to their members and to superusers; a topic
without groups is visible to all users who may view jobs. Other users cannot detect a hidden topic: its
jobs are in no list and no search, and the URLs of the topic and its jobs answer 404.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db.models import QuerySet

from . import handlers
from .models import Topic

VIEW, OPERATE, MANAGE = "delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic"
FORWARD = "delaytasks.forward_topic"


def can_view(user: Any) -> bool:
    """Return whether the user may view jobs."""
    return bool(user.has_perm(VIEW))


def can_operate(user: Any) -> bool:
    """Return whether the user may view and change jobs: cancel, postpone, run now, retry."""
    return bool(user.is_active and user.has_perms([VIEW, OPERATE]))


def can_manage(user: Any) -> bool:
    """Return whether the user may change visible topics: pause, resume, and edit concurrency and the other fields."""
    return bool(user.has_perm(MANAGE))


def can_forward(user: Any) -> bool:
    """Return whether the user may set the forwarding target of the topics that they may change or add."""
    return bool(user.has_perm(FORWARD))


def topics_requiring_reason(using: str, among: Iterable[str] | None = None) -> set[str]:
    """Return the topics where staff must give a reason to pause the topic or change its jobs.

    among   only these topics; None: all topics
    """
    topics = Topic.objects.using(using).filter(ask_reason=True)
    if among is not None:
        topics = topics.filter(name__in=list(among))
    return set(topics.values_list("name", flat=True))


def topics_hiding_bodies(using: str) -> set[str]:
    """Return the topics whose bodies only consumers may see."""
    return set(Topic.objects.using(using).filter(hide_bodies=True).values_list("name", flat=True))


class TopicRules(NamedTuple):
    """The rules of one topic for staff."""

    requires_reason: bool
    hides_bodies: bool


def topic_rules(using: str, topic: str) -> TopicRules:
    """Return the rules of a topic with one query. A topic without a row has none."""
    row = Topic.objects.using(using).filter(name=topic).values_list("ask_reason", "hide_bodies").first()
    return TopicRules(*(row or (False, False)))


class Visibility(NamedTuple):
    """The topics that one user may see."""

    rows: list[str]  # names of visible Topic rows
    limit: list[str] | None  # topics whose jobs are visible; None: jobs of all topics


def visible_topics(user: Any, using: str) -> list[str] | None:
    """Return the topics whose jobs `user` may see, or None if the user may see the jobs of all topics.

    A job whose topic has neither a row nor a handler in this process is visible only to users who may see
    all topics. The database is read once per user object, which is once per request.
    """
    return visibility(user, using).limit


def topic_rows(user: Any, using: str) -> list[str]:
    """Return the names of the Topic rows that `user` may see, sorted."""
    return visibility(user, using).rows


def known_topics(user: Any, using: str) -> list[str]:
    """Return the topics with a row or a handler in this process that `user` may see, for searches by key."""
    topics = visibility(user, using)
    return sorted({*topics.rows, *handlers.known()}) if topics.limit is None else topics.limit


def visible_jobs(jobs: QuerySet, user: Any) -> QuerySet:
    """Return the jobs that `user` may see."""
    topics = visible_topics(user, jobs.db)
    return jobs if topics is None else jobs.filter(topic__in=topics)


def can_see_topic(user: Any, topic: str, using: str) -> bool:
    """Return whether the user may see the topic and its jobs."""
    topics = visible_topics(user, using)
    return topics is None or topic in topics


def visibility(user: Any, using: str) -> Visibility:
    """Return the topics that `user` may see. The result is cached on the user object."""
    cached: dict[str, Visibility] = getattr(user, "_delaytasks_visibility", None) or {}
    if using not in cached:
        cached[using] = _read_visibility(user, using)
        user._delaytasks_visibility = cached
    return cached[using]


def _read_visibility(user: Any, using: str) -> Visibility:
    rows = dict(Topic.objects.using(using).order_by("name").values_list("name", "visible_to"))
    names = list(rows)
    if user.is_superuser or not any(rows.values()):  # no restricted topics, as on most sites: no query for groups
        return Visibility(names, None)
    user_groups = _groups(user)
    hidden = {name for name, groups in rows.items() if groups and not user_groups & _ids(groups)}
    if not hidden:
        return Visibility(names, None)
    return Visibility(
        [name for name in names if name not in hidden],
        sorted({*rows, *handlers.known()} - hidden),
    )


def _groups(user: Any) -> set[str]:
    """Return the ids of the user's groups; an empty set if the user model has no groups."""
    groups = getattr(user, "groups", None)
    return set() if groups is None else {str(pk) for pk in groups.values_list("pk", flat=True)}


def _ids(groups: Any) -> set[str]:
    """Return the group ids of a topic's `visible_to`.

    If `visible_to` is not a list, return an empty set, which hides the topic from all but superusers.
    """
    return {str(each) for each in groups} if isinstance(groups, Iterable) and not isinstance(groups, str) else set()
