"""The protocol with a contestant's driver, and the forms in which it is measured."""

import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.contestants import roster
from benchmarks.drivers import Driver, DriverFailed
from benchmarks.plan import Form, Measured, Options

pytestmark = pytest.mark.tools

DRIVER = """
import json, sys, time
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "die": sys.exit("on purpose")
    if command["do"] == "hang": time.sleep(60)
    print(json.dumps({"error": "no"} if command["do"] == "fail" else command), flush=True)
"""


def test_a_form_is_for_contestants_with_the_needed_feature():
    form = Form("burst", "batch", "jobs/s", lambda testbed, options: Measured(1), needs="burst.batch")
    assert form.fits("delaytasks", {"burst.batch"}, "sqlite")
    assert not form.fits("celery", {"burst"}, "postgres")
    ours = Form("scale", "x", "", form.measure, only=("delaytasks",), databases=("postgres",), repeats=1)
    assert ours.fits("delaytasks", (), "postgres")
    assert not ours.fits("delaytasks", (), "sqlite")
    assert not ours.fits("celery", (), "postgres")
    assert [ours.runs(repeat, 3) for repeat in range(3)] == [True, False, False]


def test_a_smaller_run_scales_all_numbers():
    assert Options(jobs=500).scaled(1_000_000) == 25_000
    assert Options(jobs=1).scaled(5) == 1


def test_delaytasks_is_the_first_contestant():
    assert next(iter(roster.contestants())) == roster.OURS


def test_another_checkout_is_measured_beside_this_one(tmp_path, monkeypatch):
    driver = tmp_path / roster.DRIVER
    driver.parent.mkdir(parents=True)
    driver.touch()
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--former", str(tmp_path), "--only", "delaytasks,former"])
    (ours, _, root), (former, _, former_root) = command.entered(command.arguments())
    assert (ours, former) == (roster.OURS, roster.FORMER)
    assert (root / roster.DRIVER).is_file()
    assert former_root == tmp_path


def test_a_folder_without_a_checkout_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--former", str(tmp_path)])
    with pytest.raises(SystemExit):
        command.arguments()
    assert "name a checkout of delaytasks" in capsys.readouterr().err


@pytest.fixture
def driver(tmp_path):
    driver = Driver("it", [sys.executable, "-c", DRIVER], {}, tmp_path)
    yield driver
    driver.close()


def test_a_driver_answers_line_by_line(driver):
    assert driver.do("fill", due=[1.5], kind="noop") == {"do": "fill", "due": [1.5], "kind": "noop"}
    with pytest.raises(DriverFailed, match="it: no"):
        driver.do("fail")
    assert driver.do("left") == {"do": "left"}


def test_a_driver_that_exits_is_reported_with_the_end_of_its_log(driver):
    with pytest.raises(DriverFailed, match=r"(?s)exited during die.*on purpose"):
        driver.do("die")
    with pytest.raises(DriverFailed, match=r"exited before left|exited during left"):
        driver.do("left")


def test_a_driver_that_does_not_answer_is_killed(driver):
    with pytest.raises(DriverFailed, match=r"did not answer hang in 0\.2 s"):
        driver.do("hang", seconds=0.2)
    assert driver.has_exited  # a late answer would be mistaken for that of the next command


def test_a_driver_that_cannot_be_started_is_reported():
    with pytest.raises(DriverFailed, match="does not start"):
        Driver("it", ["/no/such/program"], {}, Path("/tmp"))
