"""Read what Celery beat runs: the beat_schedule of an app, and the tables of django-celery-beat if it is installed."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import celery
from celery.app.utils import find_app
from celery.schedules import maybe_schedule
from django.apps import apps

DATABASE_SCHEDULER = "django_celery_beat"


@dataclass(frozen=True)
class Entry:
    """An entry of beat.

    schedule     an object of celery.schedules or of django-celery-beat
    tz           name of the zone in which beat reads a crontab
    options      of apply_async(): queue, expires and so on
    begin, end   aware datetimes; None: no limit
    problem      why the entry cannot be read, or ""
    """

    name: str
    task: str
    schedule: Any
    tz: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    enabled: bool = True
    one_off: bool = False
    begin: datetime | None = None
    end: datetime | None = None
    last_run_at: datetime | None = None
    problem: str = ""


def find(app_path: str = "") -> celery.Celery:
    """Return the app as for `celery -A`; "": the current app.

    Raises ImportError, AttributeError or ValueError if there is none.
    """
    app = find_app(app_path) if app_path else celery.current_app
    if not isinstance(app, celery.Celery):
        raise ValueError(f"{app!r:.100} is not a Celery app")
    return app


def read(app: celery.Celery) -> list[Entry]:
    """Return the entries of the Celery app and of django-celery-beat's tables. A row replaces the entry of its name."""
    # django-celery-beat copies the app's entries into its tables; staff may have changed or disabled the copy.
    return list({entry.name: entry for entry in (*_from_app(app), *_from_tables(app))}.values())


def _from_app(app: celery.Celery) -> Iterator[Entry]:
    app.loader.import_default_modules()  # as beat does: a receiver in a module of tasks may add entries
    app.finalize()
    zone = str(app.timezone)
    for name, entry in sorted((app.conf.beat_schedule or {}).items()):
        schedule = maybe_schedule(entry["schedule"], entry.get("relative", False))
        yield Entry(
            str(name), entry["task"], schedule, zone, list(entry.get("args") or ()), dict(entry.get("kwargs") or {}),
            entry.get("options") or {},
        )  # fmt: skip


def _from_tables(app: celery.Celery) -> Iterator[Entry]:
    if not apps.is_installed(DATABASE_SCHEDULER):
        return
    tasks = apps.get_model(DATABASE_SCHEDULER, "PeriodicTask")._default_manager
    for row in tasks.select_related("interval", "crontab", "solar", "clocked").order_by("name"):
        try:
            yield _from_row(row, app)
        except Exception as error:  # beat itself disables or skips such a row; go on with the others
            yield Entry(row.name, row.task, None, "", problem=f"its row cannot be read: {error}")


def _from_row(row: Any, app: celery.Celery) -> Entry:
    schedule = row.solar or row.schedule  # the schedule of a solar row needs another library
    return Entry(
        row.name, row.task, schedule, str(getattr(schedule, "tz", app.timezone)), json.loads(row.args or "[]"),
        json.loads(row.kwargs or "{}"), _options(row), row.enabled, row.one_off, row.start_time, row.expires,
        row.last_run_at,
    )  # fmt: skip


def _options(row: Any) -> dict[str, Any]:
    headers = json.loads(row.headers or "{}")
    found = {
        "queue": row.queue, "exchange": row.exchange, "routing_key": row.routing_key, "priority": row.priority,
        "headers": headers or None, "expires": row.expire_seconds,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}
