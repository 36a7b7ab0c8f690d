"""What beat is told to send."""

from celery import Celery

from delaytasks.bootsteps import install

OTHER_CLOCK_SECONDS = 30  # a host's clock may be so far ahead of beat's: its guards are to work all the same


def test_a_guards_message_outlives_a_wrong_clock_and_a_busy_pool():
    app = Celery("of a test", set_as_current=False)
    install(app)
    app.finalize()
    entries = app.conf.beat_schedule
    assert set(entries) == {"delaytasks.move_due", "delaytasks.sweep"}
    for entry in entries.values():
        assert entry["options"]["expires"] >= max(2 * OTHER_CLOCK_SECONDS, 2 * entry["schedule"])
