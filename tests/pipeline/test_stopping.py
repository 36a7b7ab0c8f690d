"""When a stream ends: told to, with its parent, when its time is over; never in the middle of a batch."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from delaytasks.management.verbs.pipeline import stream as verb
from delaytasks.pipeline import following, stopping, stream
from delaytasks.pipeline.database import DatabaseAway
from delaytasks.pipeline.following import TOLD_SECONDS, EventReader
from delaytasks.pipeline.sources import TableReader, TableSource
from delaytasks.pipeline.stopping import Over
from tests.servers import wait_until


def nothing() -> None:
    pass


def test_it_is_over_when_it_was_told_so_when_its_parent_ended_or_its_time_did(monkeypatch: pytest.MonkeyPatch) -> None:
    told, parent, now = threading.Event(), os.getppid(), time.monotonic()
    assert not Over(told, nothing, None, None)()
    assert not Over(told, nothing, parent, now + 60)()
    assert Over(told, nothing, parent + 1, None)(), "another one has adopted it"
    assert Over(told, nothing, None, now)()
    told.set()
    assert Over(told, nothing, None, None)()

    def taken() -> None:
        raise DatabaseAway

    monkeypatch.setattr(stopping, "HELD_SECONDS", -1)
    with pytest.raises(DatabaseAway):
        Over(told, taken, None, None)()


def test_the_command_tells_a_run_who_its_parent_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def ask(question: str, options: Any, using: str, wishes: dict[str, Any], **more: Any) -> dict[str, Any]:
        asked.append(wishes)
        return {"events": 0, "batches": 0, "to": 0, "seconds": 0}

    monkeypatch.setattr(verb, "ask", ask)
    for words in ([], ["--submit"]):  # by spark-submit its parent is a Java
        call_command("delaytasks", "pipeline", "stream", *words)
    assert [each["parent"] for each in asked] == [os.getpid(), None]


def test_a_stop_waits_for_the_batch_that_is_being_worked_at_and_none_begins_after_it() -> None:
    class Batches:
        begun, may_end, taken = threading.Event(), threading.Event(), 0

        def take(self, frame: Any) -> None:
            self.begun.set()
            assert self.may_end.wait(10)
            self.taken += 1

    batches: Any = Batches()
    guarded = stream.Guarded(batches)
    batch = threading.Thread(target=guarded, args=(None, 0), daemon=True)
    batch.start()
    assert batches.begun.wait(10)
    seen: list[int] = []
    stop = threading.Thread(target=lambda: (guarded.stop(), seen.append(batches.taken)), daemon=True)
    stop.start()
    wait_until(lambda: guarded.stopping, seconds=10, what="the stop to begin")
    assert seen == []
    batches.may_end.set()
    for each in (stop, batch):
        each.join(10)
    assert seen == [1]
    with pytest.raises(stream.Stopping):
        guarded(None, 1)  # type: ignore[arg-type]
    assert batches.taken == 1


# Who holds it up


@pytest.fixture
def reader() -> Any:
    source = TableSource({"db.vendor": "postgresql", "db.name": "shop", "relation": "events"})
    table = source.reader(source.schema())
    assert isinstance(table, TableReader)
    return EventReader(table, 0, 10)


def test_one_transaction_that_stays_open_is_complained_of_and_many_short_ones_are_not(
    reader: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    now, last, holders = 0.0, 0, {"3/1"}
    monkeypatch.setattr(following, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(following, "clock", lambda: now)
    monkeypatch.setattr(reader.watermark, "_look", lambda: (last, reader.watermark._settling.look(last, holders)))

    def complaints(each: Callable[[int], set[str]]) -> list[str]:
        nonlocal now, last, holders
        for _ in range(100):
            now, last = now + 2, last + 10
            holders = each(last)
            reader.latestOffset({"to": last}, None)
        return list(capsys.readouterr().err.splitlines())

    assert complaints(lambda n: {f"4/{n}", f"4/{n - 10}"}) == [], "there is always somebody, but never the same"
    found = complaints(lambda n: {"5/1", f"4/{n}", f"4/{n - 10}"})
    assert len(found) == 200 // TOLD_SECONDS
    assert all(each.endswith("(5/1)") for each in found)


def test_a_run_that_takes_what_there_is_complains_only_of_what_it_leaves(
    reader: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    looks = iter([(10, {"3/1"}), (12, {"3/2"}), (13, {"3/2"})])

    def look() -> tuple[int, int]:
        last, holders = next(looks)
        return last, reader.watermark._settling.look(last, holders)

    monkeypatch.setattr(reader.watermark, "_look", look)
    reader.prepareForTriggerAvailableNow()
    assert (reader.end, capsys.readouterr().err) == (10, "")
    monkeypatch.setattr(following, "LAST_PATIENCE_SECONDS", 0)
    reader.prepareForTriggerAvailableNow()
    assert reader.end == 10
    assert "waits for open transactions that insert events (3/2)" in capsys.readouterr().err
