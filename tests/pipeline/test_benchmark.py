"""The benchmark's other engines answer the same questions as the pipeline, on countable rows."""

import time
import tomllib
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from django.db import connection
from pyarrow import parquet

from benchmarks.pipeline import agreeing, beside, questions, rows
from delaytasks.pipeline.applications import audit, report
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables.lake import Lake

pytestmark = pytest.mark.tools


@pytest.mark.only_on("postgresql")
def test_the_report_and_the_sql_of_the_benchmark_agree_and_a_wrong_count_is_seen(
    spark: Any, database: Database, lake: Lake, tmp_path: Path
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT setseed(0.3)")
        cursor.execute(rows.MS)
        cursor.execute(rows.JOBS % {"rows": 300, "jitter": 1, "back": rows.BACK_DAYS})
        cursor.execute(rows.EVENTS.replace("%%", "%"))
        cursor.execute("DROP FUNCTION ms")
    report.run(spark, database, lake)
    keywords = f"host={database.host} user={database.user} dbname={database.name}"
    found = beside.of_postgres(keywords, beside.QUESTIONS["report"])[0]
    parquet.write_table(pyarrow.Table.from_pylist(found), tmp_path / "theirs")

    agreeing.reports(Path(lake.path("")), tmp_path / "theirs")

    assert sum(each["happened"] for each in found) > 350
    found[0]["finished"] += 1
    parquet.write_table(pyarrow.Table.from_pylist(found), tmp_path / "wrong")
    with pytest.raises(agreeing.Disagree, match="finished"):
        agreeing.reports(Path(lake.path("")), tmp_path / "wrong")


@pytest.mark.only_on("postgresql")
def test_the_audit_and_the_sql_of_the_benchmark_agree(
    spark: Any, database: Database, lake: Lake, tmp_path: Path
) -> None:
    of_so_many = {"rows": 2_000}
    with connection.cursor() as cursor:
        cursor.execute("SELECT setseed(0.3)")
        cursor.execute(rows.MS)
        cursor.execute(rows.JOBS % {**of_so_many, "jitter": 1, "back": rows.BACK_DAYS})
        cursor.execute(rows.ORDER_TABLE)
        cursor.execute(rows.ORDERS % of_so_many)
        cursor.execute(rows.TWICE % of_so_many)
        cursor.execute(rows.EVENTS.replace("%%", "%"))
    keywords = f"host={database.host} user={database.user} dbname={database.name}"
    asked = tomllib.loads(questions.RULE)["rule"]
    answer = audit.run(spark, database, lake, file="rule.toml", rules=asked)
    found = beside.of_postgres(keywords, [beside.AUDIT.replace("{now_ms}", str(round(time.time() * 1000)))])[0]
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE bench_order; DROP FUNCTION ms")
    parquet.write_table(pyarrow.Table.from_pylist(found), tmp_path / "theirs")

    agreeing.audits(answer, tmp_path / "theirs")

    classes = {each["class"] for each in found}
    assert classes >= {"missing", "kept", "open", "died"}
    found[0]["keys"] += 1
    parquet.write_table(pyarrow.Table.from_pylist(found), tmp_path / "wrong")
    with pytest.raises(agreeing.Disagree, match=found[0]["class"]):
        agreeing.audits(answer, tmp_path / "wrong")
