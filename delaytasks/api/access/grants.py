"""The rights that a user may grant to a token: at most those that the user has."""

from collections.abc import Collection
from typing import Any

from django.utils.translation import gettext as _

from ... import databases, permissions
from .permissions import ScheduleRight

CONSUME = "delaytasks_api.grant_consume"


def sees(user: Any, topic: str) -> bool:
    """Return whether the user may know of the topic of a grant. A pattern may cover hidden topics, now or later."""
    if not (permissions.can_view(user) or user.has_perm("delaytasks.view_topic")):
        return False
    limit = permissions.visible_topics(user, databases.alias())
    return limit is None or topic in limit


def problem(user: Any, topic: str, rights: Collection[str]) -> str:
    """Return why the user may not grant these rights on the topic, or "".

    The user must see the topic and its jobs. In addition, to grant a right, the user needs these permissions:

    submit    operate on jobs
    produce   operate on jobs; add, change and delete schedules
    manage    operate on jobs; change topics, because a manager pauses them; change and delete schedules
    consume   grant_consume, because a consumer sees the secrets in bodies; view schedules
    """
    if not permissions.can_view(user) or not sees(user, topic):
        return _("You do not see every topic. Grant topics that you see, by their full names.")
    if not permissions.can_operate(user) and {"submit", "produce", "manage"} & set(rights):
        return _("You may not change jobs, so you cannot grant that right.")
    if "manage" in rights and not permissions.can_manage(user):
        return _("You may not pause topics, so you cannot grant the right to manage.")
    if "consume" in rights and not user.has_perm(CONSUME):
        return _("You may not grant the right to consume: consumers read bodies with their secrets.")
    if not all(each.allows(user) for each in ScheduleRight if each.is_of(rights)):
        return _("You lack permissions on schedules that this right includes.")
    return ""
