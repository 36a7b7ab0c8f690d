"""What happens when the app is installed and migrated."""

import pytest
from django.apps import apps
from django.core.management import call_command

from delaytasks import topics
from delaytasks.apps import _make_topic_rows
from delaytasks.models import Topic


@pytest.fixture
def handled() -> str:
    """The name of a topic that has a handler."""
    topics.handler("test.installed")(handler)
    yield "test.installed"
    topics.forget("test.installed")


def handler(job: object) -> None: ...


@pytest.mark.django_db
def test_a_migration_makes_a_row_for_each_handled_topic(handled):
    _make_topic_rows(using="default")
    assert Topic.objects.filter(name=handled).exists()


@pytest.mark.django_db
def test_a_migration_leaves_what_staff_have_set(handled):
    Topic.objects.create(name=handled, paused=True, concurrency=2)
    _make_topic_rows(using="default")
    assert Topic.objects.values_list("paused", "concurrency").get(name=handled) == (True, 2)


@pytest.mark.django_db(transaction=True)
def test_the_app_can_be_migrated_away_and_back(handled):
    call_command("migrate", "delaytasks", "zero", verbosity=0)
    call_command("migrate", "delaytasks", verbosity=0)
    assert Topic.objects.filter(name=handled).exists()


@pytest.mark.django_db
def test_the_models_have_no_change_that_is_not_migrated():
    call_command("makemigrations", "delaytasks", check=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize("module", [None, "no_such_module_anywhere"])
def test_handlers_are_looked_for_where_the_setting_says(settings, module):
    settings.DELAYTASKS = {"AUTODISCOVER": module}
    apps.get_app_config("delaytasks").ready()
