"""What leaves a walk while a page is made takes nothing else with it."""

from typing import Any

import pytest

from delaytasks import cancel, listing, schedule
from delaytasks.models import Job
from delaytasks.states import State

from .conftest import Stage


def test_rows_that_leave_between_two_looks_hide_none_that_stays(
    stage: Stage, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"mail.send": {}}}
    monkeypatch.setattr(listing, "EXAMINED", 5)
    for number in range(8):
        schedule("mail.send", key=f"k{number}", delay=0)
    stage.take("mail.send", 20)
    Job.objects.exclude(key="k6").update(state=State.DELAYED, lease_until=None)
    look, looks = listing._part, []

    def part(*args: Any) -> list[Job]:
        found = look(*args)
        if not looks:
            cancel("mail.send", key="k0")
            cancel("mail.send", key="k1")
        looks.append(found)
        return found

    monkeypatch.setattr(listing, "_part", part)
    cursor, seen = "", []
    for _ in range(5):
        page = listing.page("default", ["mail.send"], state=State.RESERVED, cursor=cursor, limit=3)
        seen += [job.key for job in page.jobs]
        cursor = page.next
        if not cursor:
            break
    assert seen == ["k6"]
