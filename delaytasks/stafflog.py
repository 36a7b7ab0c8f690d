"""What staff did, in Django's own log: who, when, to which row, and why. The words are read in admin/history.py."""

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model

ADDED, CHANGED = 1, 2  # as django.contrib.admin.models has them, which may not be installed


def said(what: str, reason: str = "") -> str:
    """An entry's words: "Cancelled: they paid by phone", or "Cancelled." without a reason."""
    return f"{what}: {reason}" if reason else f"{what}."


def write(user_id: Any, rows: Iterable[Any], what: str, reason: str = "", *, flag: int = CHANGED) -> None:
    """One entry for each row. None where there is no admin, and none for somebody who is gone meanwhile.

    user_id   of the person; as text, too
    """
    rows = list(rows)
    if not rows or not user_id or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import LogEntry

    if get_user_model()._default_manager.filter(pk=user_id).exists():
        LogEntry.objects.log_actions(user_id, rows, flag, said(what, reason), single_object=False)
