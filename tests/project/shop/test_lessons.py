"""A lesson's class is reminded, also when the lesson moves."""

from datetime import timedelta

import pytest
from django.db import connection

from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.testing import hours, minutes
from delaytasks.timeouts.triggers import installation, marks, statements
from project.shop.models import Customer, Lesson, Message


@pytest.fixture
def lesson(timeouts, customer):
    """A lesson in two hours, with a class of two."""
    lesson = Lesson.objects.create(title="Brewing tea", starts_at=timeouts.now + hours(2))
    lesson.students.set([customer, Customer.objects.create(name="Ben", email="ben@shop.example")])
    return lesson


def postpone(client, lesson):
    """Postpone the lesson by an hour with the action in the admin's list, which sends no signals."""
    page = client.post("/admin/shop/lesson/", {"action": "postpone", "_selected_action": lesson.pk}, follow=True)
    assert "1 lesson was postponed." in page.content.decode()


def test_the_class_is_reminded_15_minutes_before_its_lesson(timeouts, lesson):
    assert not timeouts.advance(hours=1, minutes=44)
    assert timeouts.advance(minutes=1).outcomes == {"finished": 1}

    recipients = Message.objects.order_by("pk").values_list("kind", "to", "about")
    key = f"lesson:{lesson.pk}"
    assert list(recipients) == [("lesson", "ada@shop.example", key), ("lesson", "ben@shop.example", key)]
    assert not timeouts.advance(days=1)


def test_the_reminder_moves_with_its_lesson(timeouts, lesson):
    lesson.starts_at += hours(1)
    lesson.save()
    timeouts.assert_scheduled("lesson.remind", subject=lesson, due_at=lesson.starts_at - minutes(15))


def test_the_page_of_a_lesson_in_the_admin_shows_its_reminders(timeouts, lesson, admin_client):
    timeouts.advance(hours=1, minutes=45)
    lesson.starts_at += timedelta(days=1)
    lesson.save()

    page = admin_client.get(f"/admin/shop/lesson/{lesson.pk}/change/").content.decode()
    for state in ("finished", "delayed"):
        job = Job.objects.get(subject_label="shop.lesson", state=State[state.upper()])
        assert f"/admin/delaytasks/job/{job.pk}/change/" in page


def test_a_lesson_that_is_moved_after_its_reminder_is_announced_again(timeouts, lesson):
    timeouts.advance(hours=1, minutes=45)
    lesson.starts_at += timedelta(days=1)
    lesson.save()

    assert timeouts.advance(days=1).outcomes == {"finished": 1}
    assert Message.objects.count() == 4


def test_a_cancelled_lesson_is_not_announced(timeouts, lesson):
    lesson.cancelled = True
    lesson.save()
    assert not timeouts.advance(days=1)


def test_a_lesson_that_begins_in_a_few_minutes_is_not_announced(timeouts):
    Lesson.objects.create(title="Brewing tea", starts_at=timeouts.now + minutes(5))

    timeouts.advance(hours=1)
    assert not Message.objects.exists()


@pytest.mark.on_both
def test_a_bulk_change_in_the_admin_moves_the_reminder_at_the_next_reconciliation(timeouts, lesson, admin_client):
    timeouts.reconcile()
    postpone(admin_client, lesson)
    timeouts.assert_scheduled("lesson.remind", subject=lesson, due_at=lesson.starts_at - minutes(15))

    timeouts.reconcile()  # workers do it each RECONCILE_SECONDS
    timeouts.assert_scheduled("lesson.remind", subject=lesson, due_at=lesson.starts_at + minutes(45))


@pytest.mark.on_both
def test_a_bulk_change_that_nobody_noticed_is_noticed_when_the_reminder_is_due(timeouts, lesson, admin_client):
    timeouts.advance(hours=1, minutes=44)
    timeouts.reconcile()  # so that the next one is minutes away
    postpone(admin_client, lesson)

    assert [run.at - lesson.starts_at for run in timeouts.advance(hours=1, minutes=1)] == [-minutes(15), minutes(45)]
    assert Message.objects.count() == 2


@pytest.fixture
def lesson_triggers(transactional_db):
    """Triggers on the table of the lessons, as `make run` installs them."""
    installation.install("default", ["shop_lesson"])
    yield
    statements.remove_all(connection)


@pytest.mark.on_both
@pytest.mark.usefixtures("lesson_triggers")
def test_a_bulk_change_in_the_admin_moves_the_reminder_at_once_with_triggers(timeouts, lesson, admin_client):
    marks.drain("default")
    postpone(admin_client, lesson)
    marks.drain("default")  # workers do it each second

    timeouts.assert_scheduled("lesson.remind", subject=lesson, due_at=lesson.starts_at + minutes(45))
