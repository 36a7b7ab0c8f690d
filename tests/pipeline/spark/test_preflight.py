"""Checks of an executor. On a cluster: test_blind_executors.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.spark import preflight
from delaytasks.pipeline.spark.preflight import Probe, described
from delaytasks.pipeline.tables.lake import Lake

SHOP = Database("sqlite", "shop")


def problems(probe: Probe) -> list[list[str]]:
    return json.loads(probe.report()["problems"])


def probe(lake: Lake, *inputs: Path, token: bytes = b"token") -> Probe:
    observed = tuple(((str(each), str(each)), described(str(each), str(each))) for each in inputs)
    return Probe(lake.root, "preflight/now", token, observed, SHOP, None)


def test_an_executor_reads_the_token_and_writes_a_marker(lake: Lake) -> None:
    assert [what for what, _ in problems(probe(lake))] == ["lake"]
    assert not lake.has("")  # it makes no folder of its own
    lake.write("preflight/now/token", b"token")
    report = probe(lake).report()
    assert json.loads(report["problems"]) == []
    assert lake.has(report["wrote"])
    ((kind, problem),) = problems(probe(lake, token=b"another"))
    assert (kind, problem) == ("lake", f"has another folder as the lake {lake.root}")


def test_an_input_is_identified_by_its_size_and_head(lake: Lake, tmp_path: Path) -> None:
    lake.write("preflight/now/token", b"token")
    file = tmp_path / "orders 100%.csv"
    file.write_text("id\n1\n")
    asked = probe(lake, file)
    assert problems(asked) == []
    for text, why in (("id\n2\n", "other contents"), ("id\n", "3 bytes instead of 5")):
        file.write_text(text)
        assert problems(asked) == [["input", f"has another {file} ({why})"]]
    file.unlink()
    ((kind, problem),) = problems(asked)
    assert (kind, f"does not see {file}" in problem) == ("input", True)


def test_a_database_that_an_executor_cannot_reach_is_named(lake: Lake, tmp_path: Path) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    lake.write("preflight/now/token", b"token")
    away = Database("postgresql", "shop", host=str(tmp_path), password="hush")
    ((kind, problem),) = problems(Probe(lake.root, "preflight/now", b"token", (), away, ("1", "shop")))
    assert kind == "database"
    assert "does not reach the database postgresql shop" in problem
    assert "hush" not in problem


def test_a_local_master_is_not_checked(spark: Any, lake: Lake) -> None:
    preflight.check(spark, SHOP, lake, [("/nowhere", "/nowhere")])
    assert not lake.has("")


def test_the_message_names_a_few_executors_and_each_advice_once() -> None:
    problem_rows = [(f"host{n} (process 1)", "write", "cannot write") for n in range(7)]
    assert preflight._sentence(problem_rows, 9) == (
        "7 of 9 executors cannot take part: " + "; ".join(f"host{n} (process 1) cannot write" for n in range(5))
        + "; and 2 more. Nothing was published. Give the executors' user write permission there."
    )  # fmt: skip
