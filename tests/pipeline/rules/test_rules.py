"""Rules of an audit: values, defaults and the message for each mistake. No Spark."""

from pathlib import Path
from typing import Any

import pytest

from delaytasks.pipeline.rules import rules
from delaytasks.pipeline.rules.rules import FAULTS, BadRule
from delaytasks.pipeline.sources import exports

ROOT = Path(__file__).parents[3]
GOOD = {
    "topic": "order.close", "table": "shop_order", "columns": {"id": "bigint", "pay_by": "timestamp"},
    "key": "concat('order:', id)", "since": "pay_by",
}  # fmt: skip


def one(**changed: Any) -> rules.Rule:
    given = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    return rules.rules_of("audit.toml", [given])[0]


def test_a_rule_has_defaults_and_allows_the_faults_it_names() -> None:
    rule = one(may=["died", "late"], name="orders close")

    assert rule.faults == tuple(each for each in FAULTS if each not in ("died", "late"))
    assert (rule.when, rule.holds, rule.delay_seconds, rule.late_seconds) == ("true", "false", 0, 60)
    assert (rule.title, rule.source, one().title) == ("orders close", "shop_order", "order.close")
    used = one(outcome="PAY_BY > begun_at", columns={"id": "int", "pay_by": "timestamp", "pay": "int"}).outcome_columns
    assert used == ("pay_by",)
    assert one(delay_seconds=-900).delay_seconds == -900, "before: a lesson's reminder"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"topic": None}, "rule 1, topic: missing; expected a topic's name."),
        ({"colour": 1}, "rule 1, colour: unknown field. Known: name, topic, table"),
        ({"parquet": "x"}, "rule 1, table or parquet: both are given"),
        ({"table": None}, "rule 1, table or parquet: neither is given"),
        ({"table": "x; DROP"}, "rule 1, table: 'x; DROP' is invalid; expected a table's name, or schema.table."),
        ({"columns": {"id": "whole"}}, "rule 1, columns: {'id': 'whole'} is invalid; expected column names with their"),
        ({"columns": {'id"': "int"}}, "rule 1, columns: "),
        ({"columns": {"id": "decimal(3, 4)"}}, "rule 1, columns: "),
        ({"columns": {"id": "decimal(0, 0)"}}, "rule 1, columns: "),
        ({"columns": {}}, "rule 1, columns: {} is invalid"),
        ({"key": 7}, "rule 1, key: 7 is invalid; expected a Spark SQL expression over the columns."),
        (
            {"name": "orders", "late_seconds": "soon"},
            "rule 1 (orders), late_seconds: 'soon' is invalid; expected a whole number",
        ),
        ({"late_seconds": True}, "late_seconds: True is invalid"),
        ({"late_seconds": -1}, "late_seconds: -1 is invalid"),
        ({"delay_seconds": 1.5}, "delay_seconds: 1.5 is invalid"),
        ({"may": ["lost"]}, "may: ['lost'] is invalid; expected a list of missing, orphan, twice"),
        ({"may": "late"}, "may: 'late' is invalid"),
        ({"may": [["late"]]}, "may: [['late']] is invalid"),
        ({"carry": "id"}, "carry: 'id' is invalid; expected a list of at most 10 different columns"),
        ({"carry": ["id", "id"]}, "carry: ['id', 'id'] is invalid"),
        ({"carry": ["segment"]}, "carry: segment is not one of the rule's columns: id, pay_by."),
        ({"carry": ["payer.segment"]}, "id, pay_by. A field inside a nested column cannot be used."),
        ({"carry": ["pay_by"]}, "carry: pay_by is timestamp, but must be one of string, bigint, int, smallint, bool"),
        ({"columns": {"id": "struct<a: int>"}}, "columns: {'id': 'struct<a: int>'} is invalid; expected column names"),
        ({"carry": ["id"], "amount": "pay_by"}, "amount: pay_by is timestamp, but must be a number."),
        ({"carry": ["id"], "amount": "total"}, "amount: total is not one of the rule's columns: id, pay_by."),
        ({"carry": ["id"], "amount": ["id"]}, "amount: ['id'] is invalid; expected a column with a number."),
        ({"amount": "id"}, "amount: it has no meaning without carry."),
        ({"outcome": ""}, "outcome: '' is invalid; expected a Spark SQL expression over the columns, begun_at and"),
        ({"columns": {"Begun_At": "int", "id": "int"}, "outcome": "true"}, "outcome: begun_at is the time at which"),
        ({"columns": {"as_of": "date", "id": "int"}, "outcome": "true"}, "outcome: as_of is the time of the audit"),
    ],
)
def test_a_mistake_is_reported_with_file_rule_field_value_and_what_is_expected(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRule) as raised:
        one(**changed)
    assert str(raised.value).startswith("audit.toml, rule 1")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"rule = ", "is not valid TOML: "),
        ("name = 'Ångström'".encode("latin-1"), "is not text in UTF-8: "),
        (b"", "no rules. Declare each rule as a [[rule]] table."),
        (b"[rule]\ntopic = 'x'", "no rules. Declare each rule as a [[rule]] table."),
        (b"rule = []", "no rules"),
        (b"topic = 'x'", "unknown key topic. Declare each rule"),
    ],
)
def test_a_file_without_a_valid_rule_is_refused(tmp_path: Path, data: bytes | None, message: str) -> None:
    path = tmp_path / "audit.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BadRule) as raised:
        rules.read(str(path))
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)


@pytest.mark.parametrize("data", ["\ufeff[[rule]]\ntopic = 'x'".encode(), b"[[rule]]\r\ntopic = 'x'\r\n"])
def test_a_file_as_windows_editors_write_it_is_read(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "audit.toml").write_bytes(data)
    assert rules.read(str(tmp_path / "audit.toml")) == [{"topic": "x"}]


def test_rules_with_the_same_name_are_refused() -> None:
    with pytest.raises(BadRule, match=r"rule 1, name: 'order.close' is used by another rule"):
        rules.rules_of("audit.toml", [GOOD, GOOD])


def test_a_relative_path_is_relative_to_the_rules_file(tmp_path: Path) -> None:
    given = {**GOOD, "parquet": "orders/*.parquet"}
    del given["table"]
    assert rules.rules_of(str(tmp_path / "a.toml"), [given])[0].parquet == str(tmp_path / "orders/*.parquet")
    remote = {**given, "parquet": "s3://lake/orders"}
    assert rules.rules_of("a.toml", [remote])[0].parquet == "s3://lake/orders"


def test_a_pattern_that_matches_a_folder_and_its_files_reads_each_file_once(tmp_path: Path) -> None:
    """Spark writes a folder of this name."""
    for name in ("orders.parquet/part-0.parquet", "more/orders.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    rule = one(table=None, parquet=f"{tmp_path}/**/*.parquet")
    assert sorted(path for _, path in exports.inputs(rule)) == [
        f"{tmp_path}/more/orders.parquet", f"{tmp_path}/orders.parquet/part-0.parquet"]  # fmt: skip


def test_the_shops_rules_are_valid() -> None:
    path = str(ROOT / "project" / "shop" / "audit.toml")
    found = rules.rules_of(path, rules.read(path))
    assert [rule.topic for rule in found] == ["order.close", "refund.check"]
