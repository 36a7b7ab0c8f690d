"""The databases that hold jobs: their aliases and their clocks."""

import functools
import sys
from datetime import datetime
from typing import Any

from django.db import connections, router

from . import conf
from .clock import DatabaseClock, from_ms
from .db import dialects
from .exceptions import BadInput


def aliases() -> list[str]:
    """Return the aliases of the databases whose jobs are moved, run and guarded."""
    return list(conf.get().databases or [write_alias()])


def write_alias() -> str:
    """Return the database to which the router writes jobs."""
    from .models import Job  # imported late: schedule() may be imported before Django's apps are loaded

    return router.db_for_write(Job)


def alias(using: str | None = None) -> str:
    """Return `using`, or if it is None the router's database for writes, which is never a replica.

    Raises BadInput if jobs of that database are not run.
    """
    chosen = conf.get().databases
    if using is None and not chosen:
        return write_alias()
    known = aliases()
    using = using or write_alias()
    if using not in known:
        raise BadInput(
            f"using is {using!r}, but only the jobs of {', '.join(known)} are run. Add it to DELAYTASKS['DATABASES']."
        )
    return using


def has_model(using: str, model: Any) -> bool:
    """Return whether the database has the table of this model, according to the routers."""
    return bool(router.allow_migrate_model(using, model))


def is_migrated(using: str, model: Any) -> bool:
    """Return whether the database has this model's table with all columns. Checks also run before the migrations."""
    if not has_model(using, model):
        return False
    introspection, table = connections[using].introspection, model._meta.db_table
    with connections[using].cursor() as cursor:
        if table not in introspection.table_names(cursor):
            return False
        columns = {column.name for column in introspection.get_table_description(cursor, table)}
    return {field.column for field in model._meta.concrete_fields} <= columns


def needs_apply(using: str, model: Any) -> bool:
    """Return whether declarations in code have to be applied: the database is migrated, and this is no test run.

    Django's test runner makes the checks in its databases, where no command of a deployment is called.
    """
    return is_migrated(using, model) and not is_test_run()


def is_test_run() -> bool:
    """Return whether Django's test environment is set up in this process."""
    return hasattr(getattr(sys.modules.get("django.test.utils"), "_TestState", None), "saved_data")


def now_ms(using: str) -> int:
    """Return the database's time in milliseconds since 1970.

    Rarely needs a query, because the offset to this host's clock is cached.
    """
    if dialects.is_fixed():
        return int(dialects.now_ms(using))
    return clock(using).now_ms()


def now(using: str) -> datetime:
    """Return the database's time as an aware datetime, to the millisecond."""
    return from_ms(now_ms(using))


def last_known_ms(using: str) -> int:
    """Return the database's time as now_ms() does, without a query; for threads that have no connection.

    Raises RuntimeError before the first query.
    """
    return int(dialects.now_ms(using)) if dialects.is_fixed() else clock(using).last_known_ms()


def exact_ms(using: str) -> float:
    """Return the database's time in milliseconds since 1970 with a fraction, for precise waits."""
    return dialects.now_ms(using) if dialects.is_fixed() else clock(using).exact_ms()


@functools.cache
def clock(using: str) -> DatabaseClock:
    return DatabaseClock(functools.partial(dialects.now_ms, using))
