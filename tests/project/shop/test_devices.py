"""A device is told its command at its set time."""

import pytest
from django.core.exceptions import ValidationError

from delaytasks.models import Job
from delaytasks.testing import hours
from project.run.preflight import find_free_port
from project.shop.models import Device


@pytest.fixture
def kettle(timeouts, fake_gateway):
    return Device.objects.create(
        name="kettle", address=f"{fake_gateway.url}/devices/kettle", command="boil", command_at=timeouts.now + hours(8)
    )


def test_a_device_is_told_at_its_set_time(timeouts, kettle, fake_gateway):
    timeouts.assert_scheduled("device.tell", subject=kettle, due_at=kettle.command_at)
    assert timeouts.advance(hours=8).outcomes == {"finished": 1}

    kettle.refresh_from_db()
    assert kettle.told_at == kettle.command_at
    assert list(fake_gateway.commands) == [("kettle", "boil")]


def test_a_device_that_is_set_for_a_later_time_is_told_then(timeouts, kettle, fake_gateway):
    kettle.command_at += hours(1)
    kettle.save()

    assert not timeouts.advance(hours=8)
    assert timeouts.advance(hours=1)
    assert len(fake_gateway.commands) == 1


def test_a_device_without_a_set_time_is_left_alone(timeouts, kettle):
    kettle.command_at = None
    kettle.save()
    assert not timeouts.advance(days=1)


def test_a_device_that_does_not_answer_is_tried_three_times(timeouts, kettle):
    kettle.address = f"http://127.0.0.1:{find_free_port()}/"
    kettle.save()

    assert timeouts.advance(hours=9).outcomes == {"failed": 2, "dead": 1}
    kettle.refresh_from_db()
    assert kettle.told_at is None
    assert "Connection refused" in Job.objects.get().error


def test_a_device_that_was_set_for_a_time_long_ago_is_left_alone(timeouts, fake_gateway):
    Device.objects.create(name="kettle", address=fake_gateway.url, command="boil", command_at=timeouts.now - hours(1))
    assert not timeouts.run_due()


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://kettle/", "kettle"])
def test_the_address_of_a_device_is_that_of_a_web_page(kettle, address):
    kettle.address = address
    with pytest.raises(ValidationError, match="valid URL"):
        kettle.full_clean()
