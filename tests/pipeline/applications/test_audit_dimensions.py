"""An audit's figures by the columns that a rule carries: in the answer, on the page and in the lake's table."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from django.core.management import call_command
from pyarrow import parquet

from delaytasks.db import dialects
from delaytasks.management.subcommands.pipeline import audit as verb
from delaytasks.models import Job
from delaytasks.pipeline.applications import audit
from delaytasks.pipeline.rules.rules import STATUSES, BadRule
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables import dimensions as table
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.pipeline.transforms import dimensions
from delaytasks.states import Outcome, State

from ..conftest import happened

pytestmark = pytest.mark.only_on("sqlite")  # the rows come from Parquet; test_audit.py reads both databases
SCHEMA = pa.schema([
    ("id", pa.int64()), ("paid_at", pa.timestamp("us", "UTC")), ("wanted", pa.bool_()), ("segment", pa.string()),
    ("store", pa.int32()), ("total", pa.decimal128(10, 2)), ("weight", pa.float64()),
])  # fmt: skip
COLUMNS = {
    "id": "bigint", "paid_at": "timestamp", "wanted": "boolean", "segment": "string", "store": "int",
    "total": "decimal(10, 2)", "weight": "double",
}  # fmt: skip
LONG = "a" * 120
SHORT = "a" * 100 + "… (5f61c0cc)"  # the hash begins so: printf 'a%.0s' {1..120} | md5sum


@pytest.fixture
def asked(spark: Any, database: Database, lake: Lake, job: Callable[..., Job], tmp_path: Path) -> Callable[..., Any]:
    """Audit seven orders and one job without an order.

    order  segment  store  total  weight  its job
    1      gold         1  10.50     0.5  began in time
    2      gold         1  20.00     2.0  began 90 s late
    3      gold         2  30.25     nan  missing
    4      basic        1   1.00       1  began 2 s late, which the rule allows; was made two hours after the others
    5      basic        2     -    1e30   died, having begun 1 s early: a fault of the class `died`
    6      LONG         -   7.00       1  waits
    7      -            1   8.00       1  began 4 s late, which the rule allows; an older row of it has segment zinc
    99     no row                         began in time: an orphan
    """
    now = dialects.database_now("default")
    ago, ahead = now - timedelta(minutes=90), now + timedelta(minutes=30)
    rows = [
        (1, ago, True, "gold", 1, Decimal("10.50"), 0.5), (2, ago, True, "gold", 1, Decimal("20.00"), 2.0),
        (3, ago, True, "gold", 2, Decimal("30.25"), float("nan")), (4, ago, True, "basic", 1, Decimal("1.00"), 1.0),
        (5, ago, True, "basic", 2, None, 1e30), (6, ahead, True, LONG, None, Decimal("7.00"), 1.0),
        (7, ago, True, None, 1, Decimal("8.00"), 1.0), (7, ago, False, "zinc", 9, Decimal("9000"), 1.0),
    ]  # fmt: skip
    columns = [pa.array([row[n] for row in rows], each.type) for n, each in enumerate(SCHEMA)]
    parquet.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), tmp_path / "orders.parquet")
    made = {"created_at": datetime(2020, 1, 26, 10, tzinfo=UTC)}
    for number, late_ms in {1: 0, 2: 90_000, 4: 2_000, 7: 4_000, 99: 0}.items():
        row = job(f"order:{number}", state=State.FINISHED, due_at=ago, **made)
        happened(row, Outcome.FINISHED, now, late_ms=late_ms)
    Job.objects.filter(key="order:4").update(created_at=datetime(2020, 1, 26, 12, tzinfo=UTC))
    happened(job("order:5", state=State.DEAD, due_at=ago, **made), Outcome.DEAD, now, late_ms=-1_000)
    job("order:6", due_at=ahead, **made)

    def ask(**changed: Any) -> Any:
        rule = {
            "name": "orders", "topic": "order.close", "parquet": str(tmp_path / "orders.parquet"), "columns": COLUMNS,
            "key": "concat('order:', id)", "since": "paid_at", "when": "wanted", "late_seconds": 5,
            "carry": ["segment", "store"], "amount": "total", "may": ["orphan"],
        } | changed  # fmt: skip
        return json.loads(json.dumps(audit.run(spark, database, lake, file="a.toml", rules=[rule])))

    return ask


def test_figures_by_dimension_are_answered_shown_and_added_to_the_lakes_table(
    asked: Callable[..., Any], lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    answer = asked(outcome="CASE WHEN weight < 9 THEN paid_at <= begun_at AND total > 8 END", delay="0 seconds",
                   zone="Pacific/Auckland")  # fmt: skip
    (rule,) = answer["rules"]
    by_segment, by_store = rule["dimensions"]["segment"], rule["dimensions"]["store"]

    assert (rule["rows"], rule["jobs"]) == (8, 7)
    assert answer["refused"] == "orders: 1 missing, 1 died, 1 late."
    short = ("value", "rows", "faults", "kept_share", "late_p50_ms", "late_worst_ms", "cost", "without_amount")
    assert [tuple(each[name] for name in short) for each in by_segment] == [
        ("gold", 3, 2, 1 / 3, 0, 90_000, "50.25", 0),
        ("basic", 2, 1, 1 / 2, 0, 2_000, "0", 1),
        (None, 2, 0, 1 / 2, 0, 4_000, "0", 0),  # order 7 with its older row, and the orphan
        (SHORT, 1, 0, None, None, None, "0", 0),
    ]
    assert [tuple(each[name] for name in short) for each in by_store] == [
        ("2", 2, 2, 0.0, 0, 0, "30.25", 1),
        ("1", 5, 1, 3 / 4, 2_000, 90_000, "20", 0),
        (None, 1, 0, 0.0, 0, 0, "0", 0),  # order 6, which is open, and the orphan
    ]
    gold = by_segment[0]
    assert {name: number for name, number in gold["classes"].items() if number} == {"missing": 1, "late": 1, "kept": 1}
    assert {name: amount for name, amount in gold["amounts"].items() if amount != "0"} == {
        "missing": "30.25", "late": "20", "kept": "10.5"}  # fmt: skip
    (late,) = rule["classes"]["late"]["samples"]
    assert (late["carry"], late["amount"], late["late_ms"]) == ({"segment": "gold", "store": "1"}, "20", 90_000)

    total = rule["total"]
    assert [total[name] for name in short] == [None, 8, 3, 3 / 7, 0, 90_000, "50.25", 1]
    assert rule["trend"] == [{"as_of": answer["as_of"], "kept_share": 3 / 7, "faults": 3, "late_p50_ms": 0,
                              "late_worst_ms": 90_000, "outcome_share": 2 / 5}]  # fmt: skip
    outcome = ("outcome_yes", "outcome_no", "outcome_unknown", "outcome_share")
    # Orders 1 and 2, 4 and 7, 5: order 3 has no job, 6 waits, 99 is an orphan. NaN is greater than 9.
    assert [total[name] for name in outcome] == [2, 2, 1, 2 / 5]
    assert [[each[name] for name in outcome] for each in by_segment] == [
        [2, 0, 0, 1.0], [0, 1, 1, 0.0], [0, 1, 0, 0.0], [0, 0, 0, None]]  # fmt: skip

    jobs = [(each["value"], *(each[name] for name in STATUSES)) for each in rule["weeks"]]
    assert jobs == [("2020-01-20", 0, 0, 4, 1, 1), ("2020-01-27", 0, 0, 1, 0, 0)], "order 4: Monday in Auckland"
    assert [total[name] for name in STATUSES] == [0, 0, 5, 1, 1]

    text = Path(answer["page"]).read_text()
    assert answer["page"] == lake.path(lake.document(audit.DOCUMENT)["runs"][0]["page"])
    assert text.index("<td>gold</td>") < text.index("<td>basic</td>") < text.index("<td>(none)</td>")
    assert "<td>33.3 %</td><td>0 ms</td><td>1.5 min</td>" in text

    stored = DeltaTable(lake.path(table.NAME)).to_pyarrow_table()
    rows = {(row["dimension"], row["value"]): row for row in stored.to_pylist()}
    assert set(stored.column_names) == set(table.DIMENSIONS.names)
    assert len(rows) == stored.num_rows == 10
    assert (rows["", None]["rows"], rows["", None]["cost"], rows["", None]["outcome_no"]) == (8, Decimal("50.25"), 2)
    row = rows["segment", "gold"]
    assert (row["rule"], row["topic"], row["run"], row["month"]) == (
        "orders", "order.close", 1, answer["as_of"][:7])  # fmt: skip
    assert f"{row['as_of']:%Y-%m-%dT%H:%M:%S}" == answer["as_of"][:19]
    assert (row["missing"], row["late"], row["faults"], row["late_amount"], row["cost"]) == (
        1, 1, 2, Decimal("20"), Decimal("50.25"))  # fmt: skip
    assert "dimensions" not in lake.document(audit.DOCUMENT)["runs"][0]["rules"][0], "the document stays small"

    opened = table.open_table(lake)
    folder = next(each.path for each in opened.files).removeprefix(f"{table.NAME}/").partition("/")[0]
    assert opened.commit(folder, 1).log.version() == opened.log.version(), "a repeated commit adds nothing"  # type: ignore[union-attr]
    lake.write(f"{table.NAME}/000002-0123abcd/month=2030-02/part-0.parquet", b"of a killed run")
    (whole,) = (Path(lake.path(each.path)) for each in opened.files)
    data = whole.read_bytes()
    whole.unlink()
    with pytest.raises(LakeError, match=f"{table.NAME}/.* is missing or has another size"):
        asked()
    whole.write_bytes(data)

    monkeypatch.setattr(verb, "run_application", lambda name, options, using, arguments: again)
    again = asked(
        outcome="total < 0 AND begun_at IS NULL",
        carry=["segment"],
        amount="weight",
        may=["orphan", "missing", "died", "late"],
    )
    (rule,) = again["rules"]
    assert [(each["as_of"], each["faults"]) for each in rule["trend"]] == [(answer["as_of"], 3), (again["as_of"], 0)]
    assert [each["value"] for each in rule["weeks"]] == ["2020-01-20"], "all on Sunday in UTC"
    (by_weight,) = rule["dimensions"].values()
    assert {(each["value"], each["without_amount"]) for each in by_weight} >= {("gold", 1), ("basic", 1)}
    runs = DeltaTable(lake.path(table.NAME)).to_pyarrow_table(columns=["run"])["run"].to_pylist()
    assert sorted(runs) == [1] * 10 + [2] * 6

    (tmp_path / "a.toml").write_text(
        '[[rule]]\ntopic = "x"\ntable = "y"\ncolumns = {a = "int"}\nkey = "a"\nsince = "a"'
    )
    call_command("delaytasks", "pipeline", "audit", "--rule", str(tmp_path / "a.toml"))
    out = capsys.readouterr().out
    day = answer["as_of"][:10]
    assert f"last audits: {day} 42.8 % kept and 3 faults, {again['as_of'][:10]} 42.8 % kept and 0 faults" in out
    shown = [line.split() for line in out.splitlines()]
    assert ["segment", "rows", "faults", "kept", "cost"] in shown
    assert ["gold", "3", "0", "33.3", "%", "0"] in shown


def test_a_column_with_too_many_values_is_named_and_nothing_is_published(
    asked: Callable[..., Any], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dimensions, "MAX_VALUES", 2)
    with pytest.raises(BadRule, match=r"a\.toml, rule 1 \(orders\), carry: segment has more than 2 different values"):
        asked()
    assert (lake.document(audit.DOCUMENT), lake.runs("audit")) == ({}, [])
