"""An idle installation without Redis does not write lines every second."""

import logging
from collections.abc import Iterator

import pytest
from celery import Celery

from delaytasks.celery.bootsteps import install
from delaytasks.celery.log_filter import LOGGERS

# As Celery writes them.
MESSAGES = {
    "celery.beat": ("Scheduler: Sending due task %s (%s)", "{0}", "{0}"),
    "celery.worker.strategy": ("Task %(name)s[%(id)s] received", {"name": "{0}", "id": "1"}),
    "celery.app.trace": (
        "Task %(name)s[%(id)s] succeeded in %(runtime)ss: %(return_value)s",
        {"name": "{0}", "id": "1", "runtime": 0.1, "return_value": 1000},
    ),
}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    install(Celery("of a test", set_as_current=False))
    for name in LOGGERS:
        caplog.set_level(logging.INFO, logger=name)
    return caplog


def log(name: str, task: str, level: int = logging.INFO) -> None:
    message, *arguments = MESSAGES[name]
    filled = [
        {key: str(value).format(task) for key, value in each.items()} if isinstance(each, dict) else each.format(task)
        for each in arguments
    ]
    logging.getLogger(name).log(level, message, *filled)


@pytest.mark.parametrize("name", LOGGERS)
def test_the_tasks_of_every_second_write_no_lines(lines, name):
    log(name, "delaytasks.move_due")
    assert lines.messages == []


@pytest.mark.parametrize("name", LOGGERS)
def test_other_tasks_and_failures_write_their_lines(lines, name):
    log(name, "shop.send_mail")
    log(name, "delaytasks.sweep")
    log(name, "delaytasks.move_due", logging.ERROR)
    assert len(lines.messages) == 3


@pytest.mark.parametrize("name", LOGGERS)
def test_at_the_level_debug_every_line_is_written(lines, name):
    lines.set_level(logging.DEBUG, logger=name)
    log(name, "delaytasks.move_due")
    assert len(lines.messages) == 1
