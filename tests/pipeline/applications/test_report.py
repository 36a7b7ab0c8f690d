"""The report: from the job tables to TopicStat and the page, incrementally."""

import functools
import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from delaytasks import clock
from delaytasks.db import dialects
from delaytasks.models import Job, TopicStat
from delaytasks.pipeline import __main__ as run
from delaytasks.pipeline.applications import archive, report, stale_hours
from delaytasks.pipeline.config import Settings
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Busy, Database
from delaytasks.pipeline.tables import capacity, data_files, hours
from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.states import Outcome, State

from ..conftest import happened


@functools.cache
def this_hour() -> datetime:
    """Return the start of the current hour, by the database's clock; the same throughout a test."""
    return dialects.database_now("default").replace(minute=0, second=0, microsecond=0)


@pytest.fixture(autouse=True)
def _one_hour() -> None:
    """Let each test begin with the current hour."""
    this_hour.cache_clear()


def ago(**span: float) -> datetime:
    """Return the time this long before the start of this hour."""
    return this_hour() - timedelta(**span)


def stats() -> list[tuple[str, Any, int, int | None]]:
    return [(each.topic, each.hour_at, each.finished, each.late_p50_ms) for each in TopicStat.objects.order_by("id")]


@pytest.fixture
def past(job: Callable[..., Job]) -> Callable[..., None]:
    """Add an event this long before the start of this hour."""

    def happens(
        outcome: Outcome = Outcome.FINISHED, *, late_ms: int = 5, topic: str = "order.close",
        state: State = State.FINISHED, **span: float,
    ) -> None:  # fmt: skip
        due_at = ago(**span)
        row = job(f"order:{Job.objects.count()}", topic=topic, state=state, due_at=due_at)
        happened(row, outcome, due_at + timedelta(seconds=1), late_ms=late_ms)

    return happens


@pytest.mark.on_both
def test_a_report_writes_table_and_page_and_recomputes_only_stale_hours(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None], job: Callable[..., Job], tmp_path: Path
) -> None:
    def table() -> Table:
        return Table(lake, hours.NAME, hours.MONTH)

    past(Outcome.DEAD, state=State.DEAD, days=100)  # which the archive leaves there
    past(hours=50)
    past(hours=50, late_ms=7)
    past(hours=2, topic="refund.ask")
    for n in range(120):
        job(f"herd:{n}", due_at=ago(hours=-5))
    first = report.run(spark, database, lake, html=str(tmp_path / "mail.html"))

    assert (first["since"], first["last_at"], first["rows"], first["herds"]) == (None, None, 3, 1)
    assert sorted(stats())[1:] == [
        ("order.close", ago(hours=50), 2, 5), ("refund.ask", ago(hours=2), 1, 5)]  # fmt: skip
    assert "order.close (120)" in (tmp_path / "mail.html").read_text()

    TopicStat.objects.filter(topic="order.close").update(finished=77)  # what is not worked out again stays
    past(hours=0, late_ms=9)
    past(hours=30, late_ms=1_000)  # arrives late, in an hour that was settled
    past(days=40, late_ms=2)  # the same, and leaves for the archive before a report sees it
    assert archive.run(spark, database, lake, older_than_days=39)["pruned"] == 1
    (old,) = table().in_partition(stale_hours.month_of(clock.to_ms(ago(days=100))))
    lost = old.path
    whole = Path(lake.path(lost)).read_bytes()
    Path(lake.path(lost)).unlink()  # a month of which nothing is worked out or shown is not read
    second = report.run(spark, database, lake)

    assert (second["rows"], second["since"]) == (3, ago(days=40).isoformat())
    made_ms = lake.document(report.DOCUMENT, report.FORMAT)["looks"][0]["taken_ms"]
    assert clock.to_ms(datetime.fromisoformat(second["last_at"])) == made_ms
    assert sorted(stats())[1:] == [
        ("order.close", ago(days=40), 1, 2),
        ("order.close", ago(hours=50), 77, 5), ("order.close", ago(hours=30), 1, 1_000),
        ("order.close", ago(hours=0), 1, 9), ("refund.ask", ago(hours=2), 1, 5),
    ]  # fmt: skip
    coming = DeltaTable(lake.path(capacity.NAME)).to_pyarrow_table().sort_by("as_of").to_pylist()
    assert [(each["hour_at"], each["jobs"], each["slots"], each["unknown"]) for each in coming] == [
        (ago(hours=-5), 120, 1, 0)] * 2, "of both reports"  # fmt: skip
    assert coming[0]["as_of"] < coming[1]["as_of"]
    assert [coming[0][name] for name in ("work_ms", "minutes")] == [120 * 994, 2]
    for damaged in (None, whole[:-1]):
        if damaged:
            Path(lake.path(lost)).write_bytes(damaged)
        with pytest.raises(LakeError, match=rf"{lost} \(\d+-\d+\) is missing or has another size.*remove report.json"):
            hours.read(spark, lake, table().files)
    Path(lake.path(lost)).write_bytes(whole)
    kept = hours.read(spark, lake, table().files)
    assert kept.count() == 6, "the lake has every hour once"
    assert kept.selectExpr("sum(happened)").first()[0] == 7


@pytest.mark.only_on("sqlite")
def test_a_report_reads_the_first_run_of_a_new_archive(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None]
) -> None:
    past(days=50)
    archive.run(spark, database, lake)
    past(hours=30)
    report.run(spark, database, lake)
    Path(lake.path("archive.json")).unlink()
    os.rename(lake.path("archive"), lake.path("former"))
    past(days=40)
    archive.run(spark, database, lake)
    report.run(spark, database, lake)
    assert [hour_at for _, hour_at, *_ in stats()] == [ago(days=50), ago(hours=30), ago(days=40)]


@pytest.mark.only_on("sqlite")
def test_the_capacity_of_the_last_hour_counts_all_of_its_jobs(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job]
) -> None:
    hour = dialects.database_now("default").replace(minute=0, second=0, microsecond=0)
    due = [hour + timedelta(hours=n, minutes=59, seconds=59) for n in range(1, 5)]
    for n, due_at in enumerate(due):
        job(f"order:{n}", due_at=due_at)
    answer = report.run(spark, database, lake, ahead_hours=1)
    (as_of,) = {each["as_of"] for each in DeltaTable(lake.path(capacity.NAME)).to_pyarrow_table().to_pylist()}
    last = (as_of + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)
    hours_with_jobs = [each.replace(minute=0, second=0).isoformat() for each in due if each < last + timedelta(hours=1)]
    assert [each["hour_at"] for each in answer["capacity"]] == hours_with_jobs


def test_a_month_whose_events_were_deleted_keeps_its_hours(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None]
) -> None:
    """Also if no hour was settled at the last report, so that all are recomputed."""
    past(days=100)
    past(hours=2)
    report.run(spark, database, lake)
    Job.objects.filter(due_at__lt=ago(days=99)).delete()  # by the retention, without an archive
    document = lake.document(report.DOCUMENT, report.FORMAT)
    lake.publish(report.DOCUMENT, {**document, "settled_ms": 0})
    report.run(spark, database, lake)

    table = Table(lake, hours.NAME, hours.MONTH)
    (kept,) = table.in_partition(stale_hours.month_of(clock.to_ms(ago(days=100))))
    assert kept.rows == 1

    assert table.log is not None
    log = Path(lake.path(f"{hours.NAME}/_delta_log"))
    (log / f"{table.log.version():020}.json").unlink()
    advice = "Restore its newest backup. Or remove report.json and report/hours/: the next report recomputes all hours."
    with pytest.raises(LakeError, match=rf"hours is an outdated copy, which ends with run 1, but .* run 2\. {advice}"):
        report.run(spark, database, lake)
    shutil.rmtree(lake.path(hours.NAME))
    with pytest.raises(LakeError, match=rf"hours is missing, but the last report has written run 2\. {advice}"):
        report.run(spark, database, lake)
    assert not Path(lake.path(hours.NAME)).exists()


@pytest.mark.only_on("sqlite")
def test_the_next_report_repairs_a_killed_one(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    past(hours=1)
    on_disk: list[str] = []
    publish = Lake.publish
    with monkeypatch.context() as patched:
        patched.setattr(report.page, "html", lambda facts: 1 / 0)  # the table is written, nothing is published
        with pytest.raises(ZeroDivisionError):
            report.run(spark, database, lake)
    assert (len(stats()), lake.document(report.DOCUMENT, report.FORMAT), len(lake.runs("report"))) == (1, {}, 2)

    past(hours=1)
    synced: set[str] = set()
    monkeypatch.setattr(Lake, "_sync", lambda self, path: synced.add(path))
    monkeypatch.setattr(Lake, "publish", lambda self, *given: (on_disk.extend(synced), publish(self, *given)))
    again = report.run(spark, database, lake)

    (folder,) = [each for each in lake.runs("report") if each != hours.NAME]
    files = {
        each.path
        for each in [*Table(lake, hours.NAME, hours.MONTH).files, *data_files.files_in(lake, folder, hours.MONTH)]
    }
    assert len(files) == 2
    assert set(map(lake.path, files)) <= set(on_disk), "before a document names them"

    assert [(finished, topic) for topic, _, finished, _ in stats()] == [(2, "order.close")]
    assert again["page"] == lake.path(f"{folder}/report.html")


@pytest.mark.only_on("sqlite")
def test_a_report_of_an_empty_database_is_a_page_and_holds_its_lock_to_the_end(
    spark: Any, database: Database, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clear(*_: Any) -> None:
        with pytest.raises(Busy), database.lock("report"):
            pass

    monkeypatch.setattr(report, "clear", clear)
    answer = report.run(spark, database, lake)

    assert (answer["rows"], answer["herds"]) == (0, 0)
    assert json.dumps(answer)
    assert "Timeouts" in Path(answer["page"]).read_text()


INSERTED = """
    INSERT INTO delaytasks_jobevent (id, job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error,
    reason) VALUES (%s, %s, 'finished', 2, %s, %s, %s, '', '', '', '')"""
NEXT = "SELECT nextval(pg_get_serial_sequence('delaytasks_jobevent', 'id'))"


@pytest.mark.only_on("postgresql")
def test_events_that_commit_after_a_report_correct_their_hours_in_the_next(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None]
) -> None:
    past(hours=2)
    report.run(spark, database, lake)
    job_id = Job.objects.get().pk

    def insert(connection: Any, number: int, **span: float) -> None:
        done_ms = clock.to_ms(ago(**span)) + 2_000
        connection.execute(INSERTED, (number, job_id, done_ms, done_ms, done_ms))

    with database.connect() as history, database.connect() as slow:
        insert(history, history.execute(NEXT).fetchone()[0], days=40)
        (number,) = slow.execute(NEXT).fetchone()
        slow.commit()  # it has an id, and has not begun to write
        past(hours=0)  # which has a greater one
        second = report.run(spark, database, lake)
        insert(slow, number, days=50)
    third = report.run(spark, database, lake)

    assert (second["rows"], third["rows"], third["since"]) == (1, 3, ago(days=50).isoformat())
    assert [hour_at for _, hour_at, _, _ in sorted(stats())] == [
        ago(days=50), ago(days=40), ago(hours=2), ago(hours=0)]  # fmt: skip


@pytest.mark.only_on("postgresql")
def test_a_database_lost_by_the_readers_is_reported_and_nothing_is_published(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    past(hours=1)
    real = report.events

    def disturbed(*given: Any) -> Any:
        found = real(*given)
        with database.connect() as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'delaytasks pipeline' "
                "AND datname = current_database() AND pid <> pg_backend_pid()"
            )
        return found

    monkeypatch.setattr(report, "events", disturbed)
    monkeypatch.setattr(run, "run_application", lambda *given: report.run(spark, database, lake))
    code = run.main(["report"], Settings(database, lake.root).environment())

    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["error"]) == (ExitCode.COULD_NOT_RUN, "DatabaseUnavailable")
    assert answer["message"].startswith("The database went away: invalid snapshot identifier")
    assert answer["message"].endswith("Run this again when the database is back.")
    assert (lake.document(report.DOCUMENT, report.FORMAT), stats()) == ({}, [])


def test_a_document_of_a_newer_format_is_refused(spark: Any, database: Database, lake: Lake) -> None:
    lake.publish(report.DOCUMENT, {"version": report.FORMAT + 1})
    with pytest.raises(LakeError, match=r"report\.json was written by a newer delaytasks"):
        report.run(spark, database, lake)
    assert lake.runs("report") == []
