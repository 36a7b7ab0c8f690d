"""The jobs that a filter selects for a bulk change."""

from datetime import timedelta

import pytest

from delaytasks import schedule
from delaytasks.db import dialects, scans, selection
from delaytasks.db.scans import JobFilter

pytestmark = [pytest.mark.django_db, pytest.mark.on_both]


def test_live_jobs_are_selected_by_due_time_however_many_statements_read_them(settings, monkeypatch):
    topics = ("a", "b", "c")
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {topic: {} for topic in topics}}
    monkeypatch.setattr(scans, "RANGES", 2)  # of topics in one statement
    ids = [schedule(topics[number % 3], f"k{number}", delay=timedelta(hours=number + 1)).pk for number in range(6)]
    selected = selection.select("default", JobFilter(dialects.database_now("default"), topics, live=True), limit=100)
    assert selection.read_ids(selected)[0] == ids
