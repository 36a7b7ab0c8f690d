"""How the benchmark speaks to a contestant, and in which forms it is measured."""

import sys
from pathlib import Path

import pytest

from benchmarks.contestants import roster
from benchmarks.drivers import Driver, DriverFailed
from benchmarks.plan import Form, Measured, Options

DRIVER = """
import json, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "die": sys.exit("on purpose")
    if asked["do"] == "hang": time.sleep(60)
    print(json.dumps({"error": "no"} if asked["do"] == "fail" else asked), flush=True)
"""


def test_a_form_is_for_those_who_can():
    form = Form("burst", "batch", "jobs/s", lambda stand, options: Measured(1), needs="burst.batch")
    assert form.fits("delaytasks", {"burst.batch"}, "sqlite")
    assert not form.fits("celery", {"burst"}, "postgres")
    ours = Form("scale", "x", "", form.measure, only=("delaytasks",), databases=("postgres",), repeats=1)
    assert ours.fits("delaytasks", (), "postgres")
    assert not ours.fits("delaytasks", (), "sqlite")
    assert not ours.fits("celery", (), "postgres")
    assert [ours.runs(repeat, 3) for repeat in range(3)] == [True, False, False]


def test_a_smaller_run_is_smaller_in_everything():
    assert Options(jobs=500).scaled(1_000_000) == 25_000
    assert Options(jobs=1).scaled(5) == 1


def test_we_are_a_contestant_and_the_first_of_them():
    assert next(iter(roster.found())) == roster.OURS


@pytest.fixture
def driver(tmp_path):
    made = Driver("it", [sys.executable, "-c", DRIVER], {}, tmp_path)
    yield made
    made.close()


def test_a_driver_answers_line_by_line(driver):
    assert driver.do("fill", due=[1.5], kind="noop") == {"do": "fill", "due": [1.5], "kind": "noop"}
    with pytest.raises(DriverFailed, match="it: no"):
        driver.do("fail")
    assert driver.do("left") == {"do": "left"}


def test_a_driver_that_ends_is_reported_with_its_last_words(driver):
    with pytest.raises(DriverFailed, match=r"(?s)ended during die.*on purpose"):
        driver.do("die")
    with pytest.raises(DriverFailed, match=r"is gone before left|ended during left"):
        driver.do("left")


def test_a_driver_that_is_silent_is_given_up(driver):
    with pytest.raises(DriverFailed, match=r"did not answer hang in 0\.2 s"):
        driver.do("hang", seconds=0.2)
    assert driver.is_gone  # a late answer would be taken for that to another question


def test_a_driver_that_cannot_be_started_says_why():
    with pytest.raises(DriverFailed, match="does not start"):
        Driver("it", ["/no/such/program"], {}, Path("/tmp"))
