"""The dashboard and the alert rules use metrics that exist, and alerts name sections of the runbook that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml

from delaytasks import schedule
from delaytasks.maintenance import guard
from delaytasks.monitoring import prometheus
from tests.conftest import not_run

ROOT = Path(__file__).parents[2]
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((ROOT / "deploy/grafana/delaytasks.json").read_text())
NAME = re.compile(r"\bdelaytasks_[a-z_]+")


@pytest.fixture
def families(stage: Any, with_redis: Any) -> list[Any]:
    guard.guard("default")  # so that the mirror was rebuilt
    return [family for family in prometheus.make_registry().collect() if family.name.startswith("delaytasks_")]


@pytest.fixture
def metric_names(families: list[Any]) -> set[str]:
    names = {sample.name for family in families for sample in family.samples}
    histograms = {family.name for family in families if family.type == "histogram"}
    names |= {family.name for family in families if family.type == "gauge"}
    names |= {f"{family.name}_total" for family in families if family.type == "counter"}
    return names | {f"{name}_{suffix}" for name in histograms for suffix in ("bucket", "sum", "count")}


def test_rules_and_dashboard_use_metrics_that_exist(metric_names):
    expressions = [rule["expr"] for rule in ALERTS]
    expressions += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in DASHBOARD["templating"]["list"]]
    used = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(used) > 10
    assert used <= metric_names


def test_the_dashboard_shows_each_outcome_of_an_attempt():
    [panel] = [panel for panel in DASHBOARD["panels"] if panel["title"] == "Attempts a second"]
    shown = {name for target in panel["targets"] for name in NAME.findall(target["expr"])}
    assert shown == {f"delaytasks_{outcome.value}_total" for outcome in prometheus.OUTCOMES}


def test_the_page_about_monitoring_has_every_metric_and_no_other(families):
    page = (ROOT / "docs/howto/monitor.md").read_text()
    cells = re.findall(r"^\| (`delaytasks_.*?) \|", page, re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    exported = [f"{each.name}_total" if each.type == "counter" else each.name for each in families]
    assert sorted(documented) == sorted(exported)


def test_each_alert_names_a_section_of_the_runbook():
    headings = re.findall(r"^## `?([\w ]+)`?$", (ROOT / "docs/howto/runbook.md").read_text(), re.MULTILINE)
    sections = {heading.lower().replace(" ", "-") for heading in headings}
    for rule in ALERTS:
        page, _, section = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / page).is_file()
        assert section in sections, rule["alert"]


def test_each_alert_has_a_unit_test():
    cases = yaml.safe_load((ROOT / "deploy/prometheus/alerts_test.yml").read_text())["tests"]
    fired = {test["alertname"] for case in cases for test in case.get("alert_rule_test", ()) if test["exp_alerts"]}
    assert fired == {rule["alert"] for rule in ALERTS}


def test_the_autoscalers_query_has_a_unit_test():
    lines = (ROOT / "deploy/kubernetes/shop.yaml").read_text().splitlines()
    [query] = [line.removeprefix("# ") for line in lines if line.startswith("# max(")]
    cases = yaml.safe_load((ROOT / "deploy/prometheus/alerts_test.yml").read_text())["tests"]
    assert query in {test["expr"] for case in cases for test in case.get("promql_expr_test", ())}


def test_the_panels_of_the_dashboard_do_not_overlap():
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)


@pytest.fixture
def promtool(request: pytest.FixtureRequest) -> Any:
    """Run promtool and return its output. Fails if promtool does."""
    if shutil.which("promtool") is None:
        request.config.stash[not_run].add("promtool's checks, as it is not installed: apt-get install prometheus")
        pytest.skip("there is no promtool here")

    def run(*arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, cwd=ROOT, check=False)
        output = (done.stdout + done.stderr).decode()
        assert done.returncode == 0, output
        return output

    return run


def test_promtool_accepts_the_configuration_and_each_alert_fires_when_it_should(promtool):
    promtool("check", "config", "deploy/prometheus/prometheus.yml")
    promtool("test", "rules", "deploy/prometheus/alerts_test.yml")


def test_promtool_finds_nothing_to_improve_in_the_metrics(promtool, stage, with_redis):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    stage.go()
    schedule("t", "b", delay=60)
    prometheus.observe_request("POST", "queue", 200, 0.001)
    guard.guard("default")
    metrics = prometheus_client.generate_latest(prometheus.make_registry())
    for name in ("lateness_seconds_bucket", "http_duration_seconds_bucket", "next_due_timestamp_seconds"):
        assert f"delaytasks_{name}".encode() in metrics
    assert promtool("check", "metrics", stdin=metrics) == ""
