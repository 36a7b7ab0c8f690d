"""Installing and migrating the app."""

import pytest
from django.apps import apps
from django.core.management import call_command

from delaytasks import handlers
from delaytasks.apps import _make_topic_rows
from delaytasks.maintenance import passes
from delaytasks.models import Topic


@pytest.fixture
def handled() -> str:
    """The name of a topic with a handler."""
    handlers.handler("test.installed")(handler)
    yield "test.installed"
    handlers.unregister("test.installed")


def handler(job: object) -> None: ...


@pytest.mark.django_db
def test_migrate_creates_a_row_for_each_handled_topic(handled):
    _make_topic_rows(using="default")
    assert Topic.objects.filter(name=handled).exists()


@pytest.mark.django_db
def test_migrate_does_not_change_existing_topic_rows(handled):
    Topic.objects.create(name=handled, paused=True, concurrency=2)
    _make_topic_rows(using="default")
    assert Topic.objects.values_list("paused", "concurrency").get(name=handled) == (True, 2)


@pytest.mark.django_db(transaction=True)
def test_the_app_can_be_migrated_to_zero_and_back(handled):
    call_command("migrate", "delaytasks", "zero", verbosity=0)
    call_command("migrate", verbosity=0)  # all apps: others depend on this one
    assert Topic.objects.filter(name=handled).exists()


@pytest.mark.django_db
def test_no_migration_is_missing():
    call_command("makemigrations", "delaytasks", check=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize("module", [None, "no_such_module_anywhere"])
def test_autodiscover_may_be_off_or_name_a_module_that_no_app_has(settings, module):
    settings.DELAYTASKS = {"AUTODISCOVER": module}
    apps.get_app_config("delaytasks").ready()
    assert len(set(passes)) == len(passes), "each guard makes each pass once"
