"""The report from the job tables to TopicStat and the page: what is worked out, and what is worked out again."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delaytasks import clock, dialect
from delaytasks.models import Job, TopicStat
from delaytasks.pipeline import hours, report
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.lake import Lake
from delaytasks.states import Outcome, State

from .conftest import happened


def ago(**span: float) -> Any:
    """So long before the beginning of this hour, by the database."""
    now = dialect.database_now("default")
    return now.replace(minute=0, second=0, microsecond=0) - timedelta(**span)


def stats() -> list[tuple[str, Any, int, int | None]]:
    return [(each.topic, each.hour_at, each.finished, each.late_p50_ms) for each in TopicStat.objects.order_by("id")]


@pytest.fixture
def past(job: Callable[..., Job]) -> Callable[..., None]:
    """Something that happened, so long before this hour."""

    def happens(outcome: Outcome = Outcome.FINISHED, *, late_ms: int = 5, topic: str = "order.close", **span: float):
        due_at = ago(**span)
        row = job(f"order:{Job.objects.count()}", topic=topic, state=State.FINISHED, due_at=due_at)
        happened(row, outcome, due_at + timedelta(seconds=1), late_ms=late_ms)

    return happens


def test_a_report_fills_the_table_writes_a_page_and_works_out_only_what_may_have_changed(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None], job: Callable[..., Job], tmp_path: Path
) -> None:
    past(hours=50)
    past(hours=50, late_ms=7)
    past(hours=2, topic="refund.ask")
    for n in range(120):
        job(f"herd:{n}", due_at=ago(hours=-5))
    first = report.run(spark, database, lake, html=str(tmp_path / "mail.html"))

    assert (first["since"], first["rows"], first["herds"]) == (None, 2, 1)
    assert sorted(stats()) == [
        ("order.close", ago(hours=50), 2, 5), ("refund.ask", ago(hours=2), 1, 5)]  # fmt: skip
    assert "order.close (120)" in (tmp_path / "mail.html").read_text()

    TopicStat.objects.filter(topic="order.close").update(finished=77)  # what is not worked out again stays
    past(hours=0, late_ms=9)
    past(hours=30, late_ms=1_000)  # arrives late, in an hour that was settled
    second = report.run(spark, database, lake)

    assert (second["rows"], second["since"]) == (2, ago(hours=30).isoformat())
    assert sorted(stats()) == [
        ("order.close", ago(hours=50), 77, 5), ("order.close", ago(hours=30), 1, 1_000),
        ("order.close", ago(hours=0), 1, 9), ("refund.ask", ago(hours=2), 1, 5),
    ]  # fmt: skip
    months = lake.document(report.DOCUMENT)["months"]
    kept = report.read_hours(spark, lake, months)
    assert kept.count() == 4, "the lake has every hour once"
    assert kept.selectExpr("sum(happened)").first()[0] == 5


def test_a_report_that_was_killed_before_its_end_is_made_good_by_the_next(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    past(hours=1)
    with monkeypatch.context() as patched:
        patched.setattr(report.page, "html", lambda facts: 1 / 0)  # the table is written, nothing is published
        with pytest.raises(ZeroDivisionError):
            report.run(spark, database, lake)
    assert (len(stats()), lake.document(report.DOCUMENT), len(lake.runs("report"))) == (1, {}, 1)

    past(hours=1)
    again = report.run(spark, database, lake)

    assert [(finished, topic) for topic, _, finished, _ in stats()] == [(2, "order.close")]
    assert [f"{folder}/report.html" for folder in lake.runs("report")] == [
        again["page"].removeprefix(f"{lake.path('')}")]  # fmt: skip


def test_a_report_of_an_empty_database_is_a_page(spark: Any, database: Database, lake: Lake) -> None:
    answer = report.run(spark, database, lake)

    assert (answer["rows"], answer["herds"]) == (0, 0)
    assert json.dumps(answer)
    assert "Timeouts" in Path(answer["page"]).read_text()


@pytest.mark.only_on("postgresql")
def test_an_event_whose_transaction_is_open_while_the_report_runs_is_in_the_next(
    spark: Any, database: Database, lake: Lake, past: Callable[..., None]
) -> None:
    past(hours=3)
    row = Job.objects.get()
    done_ms = clock.to_ms(ago(hours=3)) + 2_000
    with database.connect() as other:
        other.execute(
            "INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor,"
            " error, reason) VALUES (%s, 'finished', 2, %s, %s, %s, '', '', '', '')",
            (row.pk, done_ms, done_ms, done_ms),
        )
        past(hours=2)
        report.run(spark, database, lake)
        assert hours.hour_of(done_ms) >= lake.document(report.DOCUMENT)["settled_ms"]
    report.run(spark, database, lake)

    assert sorted(finished for _, _, finished, _ in stats()) == [1, 2]
