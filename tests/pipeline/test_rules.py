"""A rule of an audit: what a file may say, and the sentence for each mistake in it. Nothing here needs Spark."""

from pathlib import Path
from typing import Any

import pytest

from delaytasks.pipeline import rules
from delaytasks.pipeline.rules import FAULTS, BadRule

ROOT = Path(__file__).parents[2]
GOOD = {
    "topic": "order.close", "table": "shop_order", "columns": {"id": "bigint", "pay_by": "timestamp"},
    "key": "concat('order:', id)", "since": "pay_by",
}  # fmt: skip


def one(**changed: Any) -> rules.Rule:
    given = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    return rules.rules_of("audit.toml", [given])[0]


def test_a_rule_says_what_must_be_empty_and_the_rest_has_its_defaults() -> None:
    rule = one(may=["died", "late"], name="orders close")

    assert rule.faults == tuple(each for each in FAULTS if each not in ("died", "late"))
    assert (rule.when, rule.holds, rule.delay_seconds, rule.late_seconds) == ("true", "false", 0, 60)
    assert (rule.title, rule.source, one().title) == ("orders close", "shop_order", "order.close")
    assert one(delay_seconds=-900).delay_seconds == -900, "before: a lesson's reminder"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"topic": None}, "rule 1, topic: nothing was found; a topic's name must stand there."),
        ({"colour": 1}, "rule 1, colour: there is no such field; there are name, topic, table"),
        ({"parquet": "x"}, "rule 1, table or parquet: both were found"),
        ({"table": None}, "rule 1, table or parquet: neither was found"),
        ({"table": "x; DROP"}, "rule 1, table: 'x; DROP' was found; a table's name, or schema.table may stand there."),
        ({"columns": {"id": "whole"}}, "rule 1, columns: {'id': 'whole'} was found; names of columns with their"),
        ({"columns": {'id"': "int"}}, "rule 1, columns: "),
        ({"columns": {"id": "decimal(3, 4)"}}, "rule 1, columns: "),
        ({"columns": {}}, "rule 1, columns: {} was found"),
        ({"key": 7}, "rule 1, key: 7 was found; an expression of Spark SQL over the columns may stand there."),
        ({"name": "orders", "late_seconds": "soon"}, "rule 1 (orders), late_seconds: 'soon' was found; a whole number"),
        ({"late_seconds": True}, "late_seconds: True was found"),
        ({"late_seconds": -1}, "late_seconds: -1 was found"),
        ({"delay_seconds": 1.5}, "delay_seconds: 1.5 was found"),
        ({"may": ["lost"]}, "may: ['lost'] was found; a list of missing, orphan, twice"),
        ({"may": "late"}, "may: 'late' was found"),
        ({"may": [["late"]]}, "may: [['late']] was found"),
    ],
)
def test_a_mistake_is_named_with_file_rule_field_what_was_found_and_what_may_stand_there(
    changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRule) as raised:
        one(**changed)
    assert str(raised.value).startswith("audit.toml, rule 1")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"rule = ", "is no TOML: "),
        ("name = 'Ångström'".encode("latin-1"), "is not text in UTF-8: "),
        (b"", "there is none; rules may stand there, each as a [[rule]]."),
        (b"[rule]\ntopic = 'x'", "there is none; rules may stand there, each as a [[rule]]."),
        (b"rule = []", "there is none"),
        (b"topic = 'x'", "there is topic; rules may stand there"),
    ],
)
def test_a_file_that_holds_no_rule_is_told_as_that(tmp_path: Path, data: bytes | None, said: str) -> None:
    path = tmp_path / "audit.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BadRule) as raised:
        rules.read(str(path))
    assert str(raised.value).startswith(str(path))
    assert said in str(raised.value)


def test_rules_of_one_name_are_refused() -> None:
    with pytest.raises(BadRule, match=r"rule 1, name: 'order.close' is another rule's"):
        rules.rules_of("audit.toml", [GOOD, GOOD])


def test_a_relative_path_is_one_from_the_rules_file_on(tmp_path: Path) -> None:
    given = {**GOOD, "parquet": "orders/*.parquet"}
    del given["table"]
    assert rules.rules_of(str(tmp_path / "a.toml"), [given])[0].parquet == str(tmp_path / "orders/*.parquet")
    remote = {**given, "parquet": "s3://lake/orders"}
    assert rules.rules_of("a.toml", [remote])[0].parquet == "s3://lake/orders"


def test_the_shops_rules_can_be_gone_by() -> None:
    path = str(ROOT / "project" / "shop" / "audit.toml")
    found = rules.rules_of(path, rules.read(path))
    assert [rule.topic for rule in found] == ["order.close", "refund.check"]
