"""A process of our own project, beside the driver, for what only delaytasks has: see inside.py."""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..drivers import Driver
from ..stand import Stand

COMMAND = [sys.executable, "-m", "benchmarks.scenarios.inside"]


@contextmanager
def inside(stand: Stand, *, redis_url: str = "", **settings: Any) -> Iterator[Driver]:
    """A process of the contestant's project on its servers, which knows the commands of inside.py.

    redis_url   another Redis than the stand's
    settings    of delaytasks, in capitals, that replace the measured project's
    """
    env = stand.env | ({"BENCH_REDIS": redis_url} if redis_url else {}) | _given(settings)
    with tempfile.TemporaryDirectory(dir=stand.directory) as directory:
        driver = Driver("inside", COMMAND, env, Path(directory))
        try:
            yield driver
        finally:
            driver.close()


@contextmanager
def with_settings(stand: Stand, **settings: Any) -> Iterator[None]:
    """Inside the block the stand's workers start with these settings of delaytasks."""
    before = stand.env
    stand.env = before | _given(settings)
    try:
        yield
    finally:
        stand.env = before


def _given(settings: dict[str, Any]) -> dict[str, str]:
    return {"BENCH_DELAYTASKS": json.dumps(settings)} if settings else {}
