"""The benchmark's driver for delaytasks can do everything the benchmark uses; the benchmark itself runs rarely."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.contestants import roster
from benchmarks.drivers import Driver
from benchmarks.stand import environment
from tests.support.servers import RedisServer

pytestmark = pytest.mark.tools

KINDS = {"burst": "noop"} | {f"burst.{kind}": kind for kind in ("update", "update-relaxed", "one-commit", "batch")}
KINDS |= {f"slow.{kind}": kind for kind in ("herd", "call", "call-one-commit")}


@pytest.fixture
def driver(tmp_path: Path, database: str) -> Iterator[Driver]:
    which = "postgres" if database.startswith("postgres") else "sqlite"
    with RedisServer() as redis:
        env = environment(tmp_path, database, redis.url(), which)
        driver = Driver(roster.OURS, roster.contestants()[roster.OURS], env, tmp_path)
        try:
            yield driver
        finally:
            driver.close()


def test_the_driver_schedules_cancels_and_clears(driver: Driver) -> None:
    driver.do("setup")
    for how in ("one", "ten", "bulk"):
        assert driver.do("schedule", how=how, count=20, delay=600.0)["seconds"] > 0
        assert driver.do("left") == {"left": 20}
        assert driver.do("cancel", how="bulk" if how == "bulk" else "one", count=5)["cancelled"] == 5
        assert driver.do("left") == {"left": 15}
        driver.do("clear")
        assert driver.do("left") == {"left": 0}


def test_the_driver_fills_every_kind_of_job(driver: Driver) -> None:
    forms = [form for form in driver.do("describe")["can"] if form.startswith(("burst", "slow"))]
    driver.do("setup")
    for number, form in enumerate(forms):
        driver.do("fill", due=[time.time() + 3600] * 3, kind=KINDS[form])
        assert driver.do("left") == {"left": 3 * (number + 1)}
