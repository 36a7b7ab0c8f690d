"""End of a stream: by a signal, with its parent or at its time limit; never during a batch."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from delaytasks.management.subcommands.pipeline import stream as verb
from delaytasks.pipeline.applications import stream
from delaytasks.pipeline.sources import events
from delaytasks.pipeline.sources.arrow import TableReader, TableSource
from delaytasks.pipeline.sources.database import DatabaseUnavailable
from delaytasks.pipeline.sources.events import WARNING_SECONDS, EventReader
from delaytasks.pipeline.spark import shutdown
from delaytasks.pipeline.spark.shutdown import StopCondition
from tests.support.servers import wait_until


def nothing() -> None:
    pass


def test_a_run_stops_on_a_signal_at_its_parents_end_and_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, parent, now = threading.Event(), os.getppid(), time.monotonic()
    assert not StopCondition(stop, nothing, None, None)()
    assert not StopCondition(stop, nothing, parent, now + 60)()
    assert StopCondition(stop, nothing, parent + 1, None)(), "another one has adopted it"
    assert StopCondition(stop, nothing, None, now)()
    stop.set()
    assert StopCondition(stop, nothing, None, None)()

    def taken() -> None:
        raise DatabaseUnavailable

    monkeypatch.setattr(shutdown, "LOCK_CHECK_SECONDS", -1)
    with pytest.raises(DatabaseUnavailable):
        StopCondition(stop, taken, None, None)()


def test_the_command_passes_its_process_id_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def ask(question: str, options: Any, using: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        asked.append(arguments)
        return {"events": 0, "batches": 0, "to": 0, "seconds": 0}

    monkeypatch.setattr(verb, "run_application", ask)
    for words in ([], ["--submit"]):  # by spark-submit its parent is a Java
        call_command("delaytasks", "pipeline", "stream", *words)
    assert [each["parent"] for each in asked] == [os.getpid(), None]


def test_a_stop_waits_for_the_current_batch_and_refuses_further_ones() -> None:
    class Batches:
        begun, may_end, published = threading.Event(), threading.Event(), 0

        def publish(self, frame: Any) -> None:
            self.begun.set()
            assert self.may_end.wait(10)
            self.published += 1

    batches: Any = Batches()
    handler = stream.BatchHandler(batches)
    batch = threading.Thread(target=handler, args=(None, 0), daemon=True)
    batch.start()
    assert batches.begun.wait(10)
    seen: list[int] = []
    stop = threading.Thread(target=lambda: (handler.stop(), seen.append(batches.published)), daemon=True)
    stop.start()
    wait_until(lambda: handler.stopping, seconds=10, what="the stop to begin")
    assert seen == []
    batches.may_end.set()
    for each in (stop, batch):
        each.join(10)
    assert seen == [1]
    with pytest.raises(stream.Stopping):
        handler(None, 1)  # type: ignore[arg-type]
    assert batches.published == 1


# Blocking transactions


@pytest.fixture
def reader() -> Any:
    source = TableSource({"db.vendor": "postgresql", "db.name": "shop", "relation": "events"})
    table = source.reader(source.schema())
    assert isinstance(table, TableReader)
    return EventReader(table, 0, 10)


def test_one_long_open_transaction_is_logged_and_many_short_ones_are_not(
    reader: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    now, last, holders = 0.0, 0, {"3/1"}
    monkeypatch.setattr(events, "WAIT_SECONDS", 0)
    monkeypatch.setattr(events, "clock", lambda: now)
    monkeypatch.setattr(reader.watermark, "_poll", lambda: (last, reader.watermark._settling.advance(last, holders)))

    def complaints(each: Callable[[int], set[str]]) -> list[str]:
        nonlocal now, last, holders
        for _ in range(100):
            now, last = now + 2, last + 10
            holders = each(last)
            reader.latestOffset({"to": last}, None)
        return list(capsys.readouterr().err.splitlines())

    assert complaints(lambda n: {f"4/{n}", f"4/{n - 10}"}) == [], "there is always somebody, but never the same"
    found = complaints(lambda n: {"5/1", f"4/{n}", f"4/{n - 10}"})
    assert len(found) == 200 // WARNING_SECONDS
    assert all(each.endswith("(5/1)") for each in found)


def test_a_run_with_once_logs_only_transactions_that_it_does_not_wait_for(
    reader: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    looks = iter([(10, {"3/1"}), (12, {"3/2"}), (13, {"3/2"})])

    def look() -> tuple[int, int]:
        last, holders = next(looks)
        return last, reader.watermark._settling.advance(last, holders)

    monkeypatch.setattr(reader.watermark, "_poll", look)
    reader.prepareForTriggerAvailableNow()
    assert (reader.end, capsys.readouterr().err) == (10, "")
    monkeypatch.setattr(events, "FINAL_WAIT_SECONDS", 0)
    reader.prepareForTriggerAvailableNow()
    assert reader.end == 10
    assert "waiting for open transactions that insert events (3/2)" in capsys.readouterr().err
