"""System checks of declared timeouts.

Errors    E040 the model, E041 on, E042 after or before, E043 and E044 the condition, E045 another database
          E043 also for a regular expression that PostgreSQL cannot read, with --database
Warnings  W040 not applied, W041 no longer declared, W042 the triggers; these run with --database
"""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, router

from .. import conf, databases
from ..databases import needs_apply
from . import applied_declarations, declarations, validation
from .sync import aliases_of
from .triggers import installation

TAG = "delaytasks"


@register(TAG)
def check_declarations(**_kwargs: Any) -> list[CheckMessage]:
    """E040 to E044: the model, a field or a condition of a declaration cannot be used."""
    return [
        Error(each.message, hint=each.hint, obj=declaration.model, id=each.id)
        for declaration in declarations.registered()
        for each in validation.problems(declaration)
    ]


@register(TAG, Tags.database)
def check_patterns(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """E043: PostgreSQL cannot read a regular expression of a condition."""
    if conf.get_if_valid() is None:
        return []
    return [
        Error(each.message, hint=each.hint, obj=declaration.model, id=each.id)
        for alias in databases or ()
        for declaration in declarations.declarations()
        if alias in aliases_of(declaration)
        for each in validation.wrong_patterns(declaration, alias)
    ]


@register(TAG)
def check_databases(**_kwargs: Any) -> list[CheckMessage]:
    """E045: the model's rows are in a database without jobs."""
    if conf.get_if_valid() is None:
        return []
    return [
        Error(
            f"Timeout {each.topic!r}: the rows of {each.model._meta.label} are in the database "
            f"{each.using or router.db_for_write(each.model)!r}, but jobs are in {', '.join(databases.aliases())}. "
            "A job and its row must be in one database.",
            hint=_hint(each.using),
            obj=each.model, id="delaytasks.E045",
        )
        for each in declarations.declarations()
        if not aliases_of(each) or (each.using is None and router.db_for_write(each.model) not in aliases_of(each))
    ]  # fmt: skip


def _hint(using: str | None) -> str:
    if using is not None and using not in connections:
        return f"using={using!r} is no database of the project; DATABASES has {', '.join(connections)}."
    return "Add the model's database to DELAYTASKS['DATABASES'], or use schedule() for this timeout."


@register(TAG, Tags.database)
def check_applied(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """W040: a declaration is not applied. W041: a topic that is no longer declared has live jobs."""
    if conf.get_if_valid() is None:
        return []
    from ..models import Declaration

    chosen = [alias for alias in databases or () if needs_apply(alias, Declaration)]
    return [message for alias in chosen for message in _applied_messages(alias)]


def _applied_messages(alias: str) -> list[CheckMessage]:
    here = [each for each in declarations.declarations() if alias in aliases_of(each)]
    pending = [] if applied_declarations.is_automatic() else applied_declarations.not_applied(alias, here)
    return [
        *(
            Warning(
                f"Timeout {each.topic!r} is not applied in the database {alias!r}: no job is made, moved or cancelled.",
                hint=f"See `manage.py delaytasks timeouts plan --database {alias}`, then "
                f"`manage.py delaytasks timeouts apply --database {alias}`.",
                id="delaytasks.W040",
            )
            for each in pending
        ),
        *(
            Warning(
                f"Timeout {each.topic!r} is no longer declared, but {each.live} of its jobs are live in {alias!r}.",
                hint=f"Cancel them: `manage.py delaytasks timeouts forget {each.topic} --database {alias}`. Or declare "
                "it again.",
                id="delaytasks.W041",
            )
            for each in applied_declarations.removed(alias)
            if each.live
        ),
    ]


@register(TAG, Tags.database)
def check_triggers(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """W042: triggers that were installed are missing, changed or disabled, or no timeout needs them."""
    return [
        Warning(
            f"The triggers of declared timeouts on the table {each.table_name!r} in the database {alias!r} are not as "
            f"they should be: {each.problem}.",
            hint=f"Run `{each.remedy} --database {alias}`. Until then only reconciliation finds changes without "
            "signals.",
            id="delaytasks.W042",
        )
        for alias in databases or ()
        for each in installation.problems(alias)
    ]
