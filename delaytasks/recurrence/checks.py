"""System checks of schedules. W070 runs with --database."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register

from .. import conf
from ..databases import needs_apply, write_alias
from ..exceptions import BadSchedule
from . import schedules


@register("delaytasks", Tags.database)
def check_applied(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """W070: the schedules declared in code are not those that are stored."""
    from ..models import Schedule

    if conf.get_if_valid() is None:
        return []
    return [
        Warning(
            f"The schedules in code are not applied in the database {alias!r}: {difference}",
            hint="See `manage.py delaytasks schedules plan`, then `manage.py delaytasks schedules apply`.",
            id="delaytasks.W070",
        )
        for alias in databases or ()
        if alias == write_alias() and needs_apply(alias, Schedule) and (difference := _difference(alias))
    ]


def _difference(alias: str) -> str:
    try:
        changes = [each for each in schedules.plan(using=alias) if each.kind != "keep"]
    except BadSchedule as error:
        return str(error)
    return ", ".join(f"{each.kind} {each.name!r}" for each in changes) + "." if changes else ""
