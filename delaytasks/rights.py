"""What a person of the staff may see and do: for the admin, the HTTP side and bulk changes alike.

Django's permissions say what: view, operate (and whoever operates has to view), manage. Here is said
with which topics, and where a reason has to be given.

A topic that names groups in `visible_to` is for their members and for superusers; one that
names none is for everybody who may see jobs. Whoever cannot see a topic cannot tell that it
is there: its jobs are in no list and no search, and their addresses lead nowhere.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db.models import QuerySet

from . import topics
from .models import Topic

VIEW, OPERATE, MANAGE = "delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic"


def views(user: Any) -> bool:
    """Whether the person may look at jobs, of the topics that they may see."""
    return bool(user.has_perm(VIEW))


def operates(user: Any) -> bool:
    """Whether the person may look at jobs and change them: cancel, postpone, run now, retry."""
    return bool(user.is_active and user.has_perms([VIEW, OPERATE]))


def manages(user: Any) -> bool:
    """Whether the person may change topics that they may see: pause, resume, concurrency and the rest."""
    return bool(user.has_perm(MANAGE))


def asking(using: str, among: Iterable[str] | None = None) -> set[str]:
    """The topics, of all or among these, that staff may not pause and whose jobs they may not change without a why."""
    found = Topic.objects.using(using).filter(ask_reason=True)
    if among is not None:
        found = found.filter(name__in=list(among))
    return set(found.values_list("name", flat=True))


class Sight(NamedTuple):
    """What one person sees."""

    rows: list[str]  # the topics that have a row, by name
    limit: list[str] | None  # the only topics whose jobs they may see; None: all jobs


def visible_topics(user: Any, using: str) -> list[str] | None:
    """The topics whose jobs `user` may see; None: all of them, so that nothing need be asked of the jobs.

    A job whose topic has neither a row nor a handler here is shown only to those who see all.
    Read once per user object, which is once per request.
    """
    return sight(user, using).limit


def topic_rows(user: Any, using: str) -> list[str]:
    """The names of the topics that have a row and that `user` may see, sorted."""
    return sight(user, using).rows


def known_topics(user: Any, using: str) -> list[str]:
    """The topics that a search by key looks in: those with a row or a handler here that `user` may see."""
    seen = sight(user, using)
    return sorted({*seen.rows, *topics.known()}) if seen.limit is None else seen.limit


def visible(jobs: QuerySet, user: Any) -> QuerySet:
    """Those of the jobs that `user` may see."""
    only = visible_topics(user, jobs.db)
    return jobs if only is None else jobs.filter(topic__in=only)


def may_see(user: Any, topic: str, using: str) -> bool:
    only = visible_topics(user, using)
    return only is None or topic in only


def sight(user: Any, using: str) -> Sight:
    seen: dict[str, Sight] = getattr(user, "_delaytasks_sight", None) or {}
    if using not in seen:
        seen[using] = _look(user, using)
        user._delaytasks_sight = seen
    return seen[using]


def _look(user: Any, using: str) -> Sight:
    rows = dict(Topic.objects.using(using).order_by("name").values_list("name", "visible_to"))
    names = list(rows)
    if user.is_superuser or not any(rows.values()):  # most sites restrict nothing: then nobody's groups are asked for
        return Sight(names, None)
    mine = _groups(user)
    hidden = {name for name, groups in rows.items() if groups and not mine & _ids(groups)}
    if not hidden:
        return Sight(names, None)
    return Sight(
        [name for name in names if name not in hidden],
        sorted({*rows, *topics.known()} - hidden),
    )


def _groups(user: Any) -> set[str]:
    """The ids of the person's groups. A user model without groups has none."""
    groups = getattr(user, "groups", None)
    return set() if groups is None else {str(pk) for pk in groups.values_list("pk", flat=True)}


def _ids(groups: Any) -> set[str]:
    """The group ids of a topic's `visible_to`; what is no list of them lets nobody in."""
    return {str(each) for each in groups} if isinstance(groups, Iterable) and not isinstance(groups, str) else set()
