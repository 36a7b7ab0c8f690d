"""Run inside.py: a second process of the measured project for scenarios that only delaytasks has."""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..drivers import Driver
from ..stand import Testbed

COMMAND = [sys.executable, "-m", "benchmarks.scenarios.inside"]


@contextmanager
def inside(testbed: Testbed, *, redis_url: str = "", **settings: Any) -> Iterator[Driver]:
    """Run inside.py on the contestant's servers.

    redis_url   replaces the testbed's Redis
    settings    delaytasks settings that override those of the measured project
    """
    env = testbed.env | ({"BENCH_REDIS": redis_url} if redis_url else {}) | _as_env(settings)
    with tempfile.TemporaryDirectory(dir=testbed.directory) as directory:
        driver = Driver("inside", COMMAND, env, Path(directory))
        try:
            yield driver
        finally:
            driver.close()


@contextmanager
def with_settings(testbed: Testbed, **settings: Any) -> Iterator[None]:
    """Start the testbed's workers with these delaytasks settings inside the block."""
    env = testbed.env
    testbed.env = env | _as_env(settings)
    try:
        yield
    finally:
        testbed.env = env


def _as_env(settings: dict[str, Any]) -> dict[str, str]:
    return {"BENCH_DELAYTASKS": json.dumps(settings)} if settings else {}
