"""What the board shows, as JSON."""

import logging
from collections.abc import Callable, Collection
from typing import Any

from django.db import DatabaseError

from .. import engine, forecast, health, lastdays, lasthour
from . import boardcharts, boardpast, boardtiles
from .boardtiles import Json, Place
from .boardwords import clock_time, day_and_time, local

logger = logging.getLogger("delaytasks")


def of(using: str, only: Collection[str] | None, *, place: Place, topic: str = "") -> Json:
    """The whole board, of the topics in `only` (None: of all jobs). What cannot be counted is None.

    topic   the one that was chosen: then its tiles lead to its jobs
    """
    minutes = _if_possible(forecast.minutes, using, only)
    hours = _if_possible(forecast.hours, using, only)
    standings = _if_possible(forecast.most_standings, using, only)
    hour = _if_possible(lasthour.last_hour, using)
    machinery = _if_possible(health.health, using)
    past = _if_possible(lastdays.past, using)
    charts: Json = {
        boardcharts.MINUTES: minutes and boardcharts.due_chart(minutes, clock_time, every=10),
        boardcharts.HOURS: hours and boardcharts.due_chart(hours, day_and_time, every=3),
        **(boardcharts.hour_charts(hour, only) if hour else dict.fromkeys(boardcharts.ABOUT_THE_HOUR)),
    }
    tiles = [
        *(boardtiles.due_tiles(minutes, hours) if minutes and hours else ()),
        *(boardtiles.standing_tiles(standings, place, topic) if standings is not None else ()),
        *(boardtiles.hour_tiles(hour, only) if hour else ()),
        *(boardtiles.health_tiles(machinery) if machinery else ()),
    ]
    return {
        "at": local(engine.now_ms(using)).strftime("%H:%M:%S"), "tiles": tiles, "charts": charts,
        "past": None if past is None else boardpast.table(past, only, using),
    }  # fmt: skip


def _if_possible(ask: Callable[..., Any], *args: Any) -> Any:
    """What it answers; None where the database refuses, so that the rest of the board stands."""
    try:
        return ask(*args)
    except DatabaseError as error:
        logger.warning("the board could not ask for %s: %s", ask.__name__, error)
        return None
