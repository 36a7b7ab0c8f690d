"""The game day's shortened rules, its steps in the runbook and its table."""

import pytest

from tests.gameday import report, rules, runbook
from tests.gameday.drill import Result
from tests.gameday.failures import FAILURES

pytestmark = pytest.mark.tools
RULE = {
    "alert": "A",
    "expr": "max(x_seconds) > 300 and rate(y[5m]) > 0.1 or max(z) < max(z offset 1h) or min(h_seconds) > 30",
    "for": "1m",
    "labels": {"severity": "page"},
    "annotations": {"runbook": "docs/howto/runbook.md#beat", "summary": "For 10m."},
}


def document(**changes):
    return {"groups": [{"name": "g", "rules": [RULE | changes]}]}


def only(rules_document):
    (group,) = rules_document["groups"]
    (rule,) = group["rules"]
    return rule


def test_all_times_of_a_rule_are_shortened_and_short_ages_stay():
    short = only(rules.shorten(document()))
    assert short["for"] == "4s"
    assert short["expr"] == (
        "max(x_seconds) > 20 and rate(y[20s]) > 0.1 or max(z) < max(z offset 240s) or min(h_seconds) > 30"
    )
    assert short["annotations"] == RULE["annotations"]


def test_no_time_of_the_real_rules_is_left_out_or_becomes_nothing():
    real, short = rules.load()["groups"][0]["rules"], rules.shorten(rules.load())["groups"][0]["rules"]
    for before, after in zip(real, short, strict=True):
        assert not set("mh") & {word[-1] for word in after["expr"].split() if word[0].isdigit()}, after["expr"]
        assert "[0s]" not in after["expr"]
        assert after.get("for") != "0s"
        assert ("for" in before) == ("for" in after)


@pytest.mark.parametrize(
    ("changes", "for_seconds", "later_seconds"),
    [
        ({}, 60, 280),
        ({"expr": "min(avg_over_time(up[4m])) < 0.5"}, 60, 112),
        ({"expr": "max(abs(quantile_over_time(0.5, skew[5m]))) > 2"}, 60, 140),
        (
            {"alert": "DelaytasksWorkerLost", "expr": "max(w) < max(quantile_over_time(0.5, w[1h]))", "for": "10m"},
            600,
            20,
        ),
    ],
)
def test_the_time_with_the_real_rules_is_known(changes, for_seconds, later_seconds):
    (rule,) = rules.read(document(**changes)).values()
    assert (rule.for_seconds, rule.later_seconds) == (for_seconds, later_seconds)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
def test_the_page_of_each_failures_alert_says_what_the_game_day_does(failure):
    rule = rules.read(rules.load())[failure.alert]
    assert runbook.says(rule.page, failure.step)


def test_there_are_twelve_failures():
    assert len({failure.name for failure in FAILURES}) == 12


def test_a_section_that_is_not_there_is_an_error():
    with pytest.raises(LookupError, match="no section 'nonsense'"):
        runbook.section("docs/howto/runbook.md#nonsense")


def test_the_table_tells_what_was_seen_failed_and_not_run():
    about = {"alert": "A", "severity": "page", "page": "docs/howto/runbook.md#beat"}
    seen = Result("seen", fired_seconds=5.2, real_seconds=65, others=["B"], health="ok", mended_seconds=3, **about)
    failed, missing = Result("failed", trouble="lost: a | b", **about), Result("not run", missing="no disk", **about)
    lines = report.table([seen, failed, missing], 12).splitlines()
    assert lines[-3] == (
        "| seen | `A` (page) | 5 s | 1 min 05 s | `B` | ok | [beat](runbook.md#beat) | 3 s | 0 s | 0 |"
    )
    assert "**failed**: lost: a / b" in lines[-2]
    assert "**not run**: no disk" in lines[-1]
