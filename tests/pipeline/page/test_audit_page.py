"""An audit's page: escaped, well-formed, and bounded."""

from typing import Any

from delaytasks.pipeline.page import audit_page
from delaytasks.pipeline.rules.rules import CLASSES, STATUSES

from .test_page import EVIL, NOON, body

NOT_ASKED = {"outcome_yes": None, "outcome_no": None, "outcome_unknown": None, "outcome_share": None}


def rule(*values: dict[str, Any]) -> dict[str, Any]:
    classes = {name: {"count": name == "late", "must_be_empty": name == "late", "samples": []} for name in CLASSES}
    classes["late"]["samples"] = [{"key": EVIL}]
    return {"name": EVIL, "topic": EVIL, "source": EVIL, "rows": 7, "jobs": 7, "classes": classes,
            "dimensions": {EVIL: list(values)} if values else {}, "trend": [], "weeks": [],
            "total": value(None)}  # fmt: skip


def value(value: str | None, cost: str | None = None, share: float | None = None) -> dict[str, Any]:
    amounts = cost and dict.fromkeys(CLASSES, cost)
    return {"value": value, "rows": 1_000, "classes": dict.fromkeys(CLASSES, 2), "faults": 2, "kept_share": share,
            "late_p50_ms": None, "late_worst_ms": 90_000, "amounts": amounts, "cost": cost,
            "without_amount": cost and 3, **NOT_ASKED}  # fmt: skip


def test_texts_of_rules_and_rows_are_escaped_and_a_rule_without_dimensions_has_only_its_classes() -> None:
    text = audit_page.html([rule(), rule(value(EVIL))], NOON)

    assert EVIL not in text
    assert len(body(text).findall(".//table")) == 3


def test_the_cost_is_shown_per_class_and_a_share_is_never_rounded_up() -> None:
    text = audit_page.html([rule(value("a", "1234567.5", 0.9999), value(None, "0"))], NOON)
    table = body(text).findall(".//table")[1]
    rows = [["".join(cell.itertext()) for cell in row] for row in table]

    assert rows[0][1:] == ["rows", "kept", "p50 late", "worst late", "late", "cost", "late, cost", "without amount"]
    assert rows[1] == ["a", "1,000", "99.9 %", "–", "1.5 min", "2", "1,234,567.5", "1,234,567.5", "3"]
    assert rows[2][:3] == ["(none)", "1,000", "–"]


def test_the_trend_of_a_figure_begins_with_its_second_audit_and_leaves_gaps_out() -> None:
    def audit(kept_share: float | None, faults: int, late_p50_ms: int | None = None) -> dict[str, Any]:
        return {"as_of": "2030-01-01T12:00:00.000Z", "kept_share": kept_share, "faults": faults,
                "late_p50_ms": late_p50_ms, "late_worst_ms": None, "outcome_share": None}  # fmt: skip

    once = audit_page.html([rule() | {"trend": [audit(0.5, 1)]}], NOON)
    assert "sparkline" not in once
    assert len(body(once).findall(".//table")) == 1
    audits = [audit(0.98, 0), audit(None, 7), audit(0.9999, 2), audit(0.96, 0, 90_000)]
    text = audit_page.html([rule() | {"trend": audits}], NOON)
    kept, faults = body(text).findall(".//table")[1][1:]
    assert ["".join(cell.itertext()) for cell in kept] == ["kept", "", "98 %", "96 %", "99.9 %", "96 %"]
    assert ["".join(cell.itertext()) for cell in faults] == ["faults", "", "0", "0", "7", "0"]
    points = [[point.split(",")[1] for point in line.get("points", "").split()] for line in body(text).iter("polyline")]
    assert points == [["12.0", "2.0", "22.0"], ["22.0", "2.0", "16.3", "22.0"]], "shares from the least to 100 %"
    assert "The last 4 audits, since 2030-01-01 12:00 UTC." in text


def test_the_outcome_of_rows_is_shown_in_all_and_per_value() -> None:
    asked = {"outcome_yes": 1_999, "outcome_no": 1, "outcome_unknown": 0, "outcome_share": 0.9995}
    found = body(audit_page.html([rule(value("a") | asked) | {"total": value(None) | asked}], NOON))

    words = " ".join("".join(found.itertext()).split())
    assert "job has begun: 1,999 yes, 1 no, 0 not yet known (99.9 % yes)." in words
    head, row = (["".join(cell.itertext()) for cell in each] for each in found.findall(".//table")[1])
    assert head[-3:] == ["outcome yes", "outcome no", "outcome not yet known"]
    assert row[-3:] == ["1,999", "1", "0"]


def test_the_newest_weeks_have_the_share_of_each_status() -> None:
    def week(number: int, **counts: int) -> dict[str, Any]:
        return {"value": f"week {number}", **dict.fromkeys(STATUSES, 0), **counts}

    weeks = [week(n, live=1) for n in range(26)] + [week(26, cancelled_in_time=1, ran=2_000)]
    rows = body(audit_page.html([rule() | {"weeks": weeks}], NOON)).findall(".//table")[1]
    assert len(rows) == 1 + 26
    assert ["".join(cell.itertext()) for cell in rows[-1]] == [
        "week 26", "2,001", "1 (0 %)", "0", "2,000 (99.9 %)", "0", "0"]  # fmt: skip


def test_the_page_shows_a_hundred_values_and_says_where_all_of_them_are() -> None:
    text = audit_page.html([rule(*(value(str(n)) for n in range(101)))], NOON)
    assert "The table audit/dimensions has all 101 values." in text
    assert len(body(text).findall(".//table")[1]) == 101
