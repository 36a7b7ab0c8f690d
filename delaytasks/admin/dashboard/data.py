"""The contents of the board, as JSON."""

import logging
from collections.abc import Callable, Collection
from typing import Any

from django.db import DatabaseError

from ... import databases
from ...monitoring import daily_stats, forecast, health, last_hour
from ...recurrence import statistics
from . import charts as chart_data
from . import tables
from . import tiles as tile_data
from .labels import clock_time, day_and_time, local
from .tiles import Json, ListUrl

logger = logging.getLogger("delaytasks")


def build(using: str, topics: Collection[str] | None, *, list_url: ListUrl, topic: str = "") -> Json:
    """Return the board's contents. A chart or table is None if its query failed; a tile is then left out.

    topics   the topics to show; None: all jobs
    topic    the topic that the user chose, or "": the tiles link to its jobs
    """
    minutes = _query(forecast.minutes, using, topics)
    hours = _query(forecast.hours, using, topics)
    statuses = _query(forecast.limited_topic_statuses, using, topics)
    hour = _query(last_hour.last_hour, using)
    engine_health = _query(health.health, using)
    past = _query(daily_stats.topic_histories, using)
    recurring = _query(statistics.recent, using, topics)
    problems = engine_health and _query(health.problems_of, using, engine_health, topics)
    charts: Json = {
        chart_data.MINUTES: minutes and chart_data.due_chart(minutes, clock_time, every=10),
        chart_data.HOURS: hours and chart_data.due_chart(hours, day_and_time, every=3),
        **(chart_data.hour_charts(hour, topics) if hour else dict.fromkeys(chart_data.LAST_HOUR_CHARTS)),
    }
    tiles = [
        *(tile_data.due_tiles(minutes, hours) if minutes and hours else ()),
        *(tile_data.status_tiles(statuses, list_url, topic) if statuses is not None else ()),
        *(tile_data.hour_tiles(hour, topics) if hour else ()),
        *(tile_data.health_tiles(engine_health) if engine_health else ()),
        *(tile_data.schedule_tiles(problems, list_url) if problems else ()),
    ]
    return {
        "at": local(databases.now_ms(using)).strftime("%H:%M:%S"), "tiles": tiles, "charts": charts,
        "past": None if past is None else tables.daily(past, topics, using),
        "schedules": recurring and tables.schedules(recurring),
    }  # fmt: skip


def _query(function: Callable[..., Any], *args: Any) -> Any:
    """Return the function's result, or None after a database error, so that the rest of the board is still shown."""
    try:
        return function(*args)
    except DatabaseError as error:
        logger.warning("The board could not query %s: %s", function.__name__, error)
        return None
