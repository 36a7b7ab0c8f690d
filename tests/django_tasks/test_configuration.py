"""TASKS: options, queues and system checks."""

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from delaytasks import handlers
from delaytasks.clock import from_ms
from delaytasks.django_tasks.compat import task_backends
from delaytasks.models import Job

from . import tasks
from .conftest import BACKEND


def test_the_options_of_a_queue_are_those_of_its_handler(make_backend):
    make_backend(
        OPTIONS={"ttr": 30, "concurrency": 2, "queues": {"mail": {"ttr": 5, "max_attempts": 4, "celery_queue": "slow"}}}
    )
    default, mail = handlers.find("tasks.default"), handlers.find("tasks.mail")
    assert (default.ttr_ms, default.concurrency, default.max_attempts, default.queue) == (30_000, 2, 1, None)
    assert (mail.ttr_ms, mail.concurrency, mail.max_attempts, mail.queue) == (5_000, 2, 4, "slow")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tttr": 5}, "unknown options: tttr"),
        ({"queues": {"mail": {"tttr": 5}}}, "unknown options: tttr"),
        ({"queues": {"post": {}}}, r"unknown options: queues\['post'\]"),
        ({"queues": ["mail"]}, "OPTIONS\\['queues'\\] is"),
        ({"ttr": -1}, "ttr is -1"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"celery_queue": 3}, "queue is 3"),
    ],
)
def test_wrong_options_are_refused_by_name(make_backend, options, message):
    with pytest.raises(ImproperlyConfigured, match=message) as raised:
        make_backend(OPTIONS=options)
    assert "OPTIONS takes ttr, max_attempts" in str(raised.value)


def test_a_queue_whose_name_is_no_topic_is_refused(make_backend):
    with pytest.raises(ImproperlyConfigured, match="is not a topic's name"):
        make_backend(QUEUES=["high priority"])


def test_without_queues_every_queue_is_one_topic(make_backend):
    make_backend(QUEUES=[])
    tasks.add.using(queue_name="anything").enqueue(1)
    assert Job.objects.get().topic == "tasks.default"


def test_results_of_a_removed_queue_can_be_read_and_their_tasks_moved_and_cancelled(make_backend, db_clock):
    make_backend()
    result = tasks.add.using(queue_name="mail").enqueue(1)
    backend = make_backend(QUEUES=["default"])
    assert backend.get_result(result.id) == result
    assert backend.reschedule(result.id, from_ms(db_clock.now_ms + 1000)).task.queue_name == "mail"
    assert result.cancel() == "cancelled"
    result.refresh()
    assert result.status == "FAILED"


def test_another_alias_has_topics_of_its_own(make_backend, settings):
    settings.TASKS = {"default": {"BACKEND": BACKEND}, "bulk": {"BACKEND": BACKEND}}
    result = tasks.add.using(backend="bulk").enqueue(1)
    assert Job.objects.get().topic == "tasks.bulk.default"
    assert task_backends["default"].get_result(result.id).backend == "bulk"


def test_a_right_configuration_has_no_messages(backend):
    assert list(backend.check()) == []


def test_a_missing_app_is_an_error(make_backend, settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "delaytasks.django_tasks"]
    (message,) = make_backend().check()
    assert message.id == "delaytasks.E030"
    assert "'delaytasks.django_tasks' to INSTALLED_APPS" in message.hint


def test_two_backends_with_one_topic_are_an_error(make_backend, settings):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["b.x"]}, "b": {"BACKEND": BACKEND, "QUEUES": ["x"]}}
    messages = [message for alias in ("default", "b") for message in task_backends[alias].check()]
    assert [message.id for message in messages] == ["delaytasks.E031"]


def test_the_checks_of_the_backends_run_with_those_of_the_project(make_backend, settings):
    """Also on Django 5.2, where django-tasks is not in INSTALLED_APPS."""
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["b.x"]}, "b": {"BACKEND": BACKEND, "QUEUES": ["x"]}}
    assert [message.id for message in run_checks() if message.id in ("delaytasks.E030", "delaytasks.E031")] == [
        "delaytasks.E031"
    ]


def test_a_process_that_starts_registers_the_handlers_of_its_backends(make_backend, settings):
    from django.apps import apps

    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default"]},
        "other": {"BACKEND": "does.not.exist"},
        "dummy": {"BACKEND": f"{type(task_backends).__module__}.backends.dummy.DummyBackend"},
    }
    handlers.unregister("tasks.default")
    apps.get_app_config("delaytasks_django_tasks").ready()
    assert handlers.find("tasks.default") is not None
