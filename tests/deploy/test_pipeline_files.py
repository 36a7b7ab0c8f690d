"""The examples for schedulers and dbt agree with the pipeline: its commands, exit codes and tables."""

import re
import runpy
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from delaytasks.pipeline import schemas
from delaytasks.pipeline.__main__ import APPLICATIONS
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.tables import archives, capacity, dimensions, hours, stream_tables

DEPLOY = Path(__file__).parents[2] / "deploy"


class Failed(Exception):
    """Airflow retries the task."""


class FailedForGood(Exception):
    """Airflow does not."""


class Task:
    """A task as far as a DAG uses it: called, named, and put in order."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def override(self, task_id: str) -> Any:
        return lambda *words: asked.append((task_id, *words)) or self

    def __rshift__(self, other: "Task") -> "Task":
        return other


asked: list[Any] = []


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the DAG's names, run with the names of Airflow that it imports."""
    airflow, exceptions, sdk = ModuleType("airflow"), ModuleType("airflow.exceptions"), ModuleType("airflow.sdk")
    vars(exceptions).update(AirflowException=Failed, AirflowFailException=FailedForGood)
    vars(sdk).update(task=lambda **_: Task, dag=lambda **_: lambda function: function)
    for module in (airflow, exceptions, sdk):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    asked.clear()
    return runpy.run_path(str(DEPLOY / "airflow" / "delaytasks_pipeline.py"))


def test_the_dag_asks_for_commands_that_exist(dag: dict[str, Any]) -> None:
    assert [each[:2] for each in asked] == [(name, name) for name in ("archive", "report", "audit")]
    assert {each[1] for each in asked} <= {*APPLICATIONS}


@pytest.mark.parametrize(
    ("code", "failure"),
    [(ExitCode.DONE, None), (ExitCode.FAULTS, FailedForGood), (ExitCode.BAD_INPUT, FailedForGood),
     (ExitCode.COULD_NOT_RUN, Failed)],
)  # fmt: skip
def test_the_dag_retries_only_what_could_not_run(
    dag: dict[str, Any], code: ExitCode, failure: type[Exception] | None, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@"\necho why >&2\nexit {int(code)}\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    run = dag["pipeline"].function
    run.__globals__.update(PYTHON=str(python), PROJECT=str(tmp_path))
    if failure is None:
        assert run("report") == "manage.py delaytasks pipeline report --lake /var/lib/shop/lake --json\n"
    else:
        with pytest.raises(failure, match="why"):
            run("report")


def test_the_timer_starts_the_archive_which_is_repeated_only_if_it_could_not_run() -> None:
    service = (DEPLOY / "systemd" / "shop-archive.service").read_text()
    final = {str(int(code)) for code in (ExitCode.FAULTS, ExitCode.BAD_INPUT)}
    [codes] = re.findall(r"^RestartPreventExitStatus=(.*)$", service, re.MULTILINE)
    assert {*codes.split()} == final
    assert "Type=oneshot\n" in service
    assert "OnCalendar=" in (DEPLOY / "systemd" / "shop-archive.timer").read_text()


def test_the_sources_of_dbt_have_the_columns_of_the_lakes_tables() -> None:
    [source] = yaml.safe_load((DEPLOY / "dbt" / "sources.yml").read_text())["sources"]
    found = {
        re.findall(r"delta_scan\('/var/lib/shop/lake/default/(.*)'\)", table["meta"]["external_location"])[0]:
            [column["name"] for column in table["columns"]]
        for table in source["tables"]
    }  # fmt: skip
    tables = {
        archives.JOBS: schemas.ARCHIVED_JOBS, archives.EVENTS: schemas.ARCHIVED_EVENTS,
        hours.NAME: schemas.REPORTED_HOURS, capacity.NAME: capacity.CAPACITY, dimensions.NAME: dimensions.DIMENSIONS,
        **stream_tables.SCHEMAS,
    }  # fmt: skip
    assert found == {name: schema.names for name, schema in tables.items()}
