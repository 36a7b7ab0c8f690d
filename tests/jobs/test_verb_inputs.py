"""Every verb refuses a bad argument before it writes anything."""

import pytest
from django.utils.translation import gettext_lazy

from delaytasks import cancel, reschedule, retry_dead, run_now, schedule, schedule_many
from delaytasks.exceptions import BadInput, BadKey, BadTopic, NotDead
from delaytasks.models import Job


@pytest.mark.parametrize("by", ["x" * 300, "a\x00b", None, 7])
def test_a_bad_name_is_refused_before_anything_is_written(stage, by):
    stage.recorder("t")
    schedule("t", key="a", delay=60)
    for verb in (
        lambda: schedule("t", key="b", delay=60, by=by),
        lambda: schedule_many([{"topic": "t", "key": "b", "delay": 60}], by=by),
        lambda: cancel("t", key="a", by=by),
        lambda: reschedule("t", "a", delay=1, by=by),
        lambda: run_now("t", "a", by=by),
        lambda: retry_dead("t", "a", by=by),
    ):
        with pytest.raises(BadInput):
            verb()
    assert Job.objects.live().count() == 1


@pytest.mark.parametrize(
    ("topic", "key", "error"),
    [("t", 1042, BadKey), ("t", "", BadKey), ("t", "a\x00", BadKey), ("t", "\ud800", BadKey), ("t t", "a", BadTopic)],
    ids=["number", "empty", "nul", "surrogate", "topic"],
)
def test_every_verb_refuses_a_bad_topic_or_key(stage, topic, key, error):
    for verb in (
        lambda: cancel(topic, key=key),
        lambda: reschedule(topic, key, delay=1),
        lambda: run_now(topic, key),
        lambda: retry_dead(topic, key),
    ):
        with pytest.raises(error):
            verb()


def test_a_lazy_translation_is_called_so_in_the_message(stage):
    stage.recorder("t")
    paid = gettext_lazy("paid")
    with pytest.raises(BadInput, match=r"^reason is lazy text 'paid': give one line"):
        cancel("t", "a", reason=paid)
    with pytest.raises(BadKey, match=r"^key is lazy text 'paid': give"):
        schedule("t", paid, delay=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"topic": "t", "key": "a", "job_id": 1}, "takes topic and key, or job_id", id="both"),
        pytest.param({"topic": "t"}, "takes topic and key, or job_id", id="no-key"),
        pytest.param({"job_id": "1042a"}, "job_id is '1042a'", id="text"),
        pytest.param({"job_id": Job(id=1042, topic="t", key="a")}, "job_id is <Job: t a>", id="row"),
        pytest.param({"job_id": 2**63}, "job_id is 9223372036854775808", id="too-large"),
    ],
)
def test_a_retry_takes_a_name_or_an_id(db, arguments, message):
    with pytest.raises(BadInput, match=message):
        retry_dead(**arguments)


def test_a_retry_takes_the_text_of_an_id(db):
    with pytest.raises(NotDead, match="1042 is unknown"):
        retry_dead(job_id="1042")


def test_a_database_that_is_not_in_the_setting_is_refused(stage):
    stage.recorder("t")
    with pytest.raises(BadInput, match="DATABASES"):
        schedule("t", key="a", delay=0, using="archive")


def test_the_routers_database_is_refused_too_if_it_is_not_in_the_setting(stage, settings):
    stage.recorder("t")
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["other"]}
    with pytest.raises(BadInput, match="DATABASES"):
        schedule("t", key="a", delay=0)
