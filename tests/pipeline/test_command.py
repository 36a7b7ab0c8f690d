"""manage.py delaytasks pipeline: a run in a process of its own, on the test's database."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delaytasks import dialect
from delaytasks.models import Job
from delaytasks.pipeline.database import Database
from delaytasks.states import State

from .conftest import SMALL

pytestmark = pytest.mark.only_on("sqlite")  # on PostgreSQL there are a cluster's runs, and those that are killed
CONF = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]


def test_the_command_archives_in_a_process_of_its_own_and_answers_in_json(
    database: Database, job: Callable[..., Job], tmp_path: Path, capfd: Any
) -> None:
    job("order:1", state=State.FINISHED, due_at=dialect.database_now("default") - timedelta(days=3))
    call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path), "--older-than-days", "2",
                 "--master", "local[1]", "--json", *CONF)  # fmt: skip
    answer = json.loads(capfd.readouterr().out)

    assert (answer["jobs"], answer["pruned"]) == (1, 1)
    assert not Job.objects.exists()
    assert (tmp_path / "default" / "archive.json").exists()


def test_what_a_run_refuses_is_the_commands_sentence(database: Database, tmp_path: Path) -> None:
    with database.alone("archive"), pytest.raises(CommandError, match="Another archive of") as raised:
        call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path), "--master", "local[1]", *CONF)
    assert raised.value.returncode == 1


def test_without_a_lake_the_command_asks_for_one(database: Database) -> None:
    with pytest.raises(CommandError, match="--lake FOLDER, or DELAYTASKS") as raised:
        call_command("delaytasks", "pipeline", "report")
    assert raised.value.returncode == 2


def test_bad_options_are_usage_errors(tmp_path: Path) -> None:
    for words in (["--ahead-hours", "0"], ["--conf", "spark.x"]):
        with pytest.raises(CommandError):
            call_command("delaytasks", "pipeline", "report", "--lake", str(tmp_path), *words)
    with pytest.raises(CommandError):
        call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path), "--older-than-days", "nan")
    for page, problem in ((tmp_path / "no" / "x.html", "has no folder"), (tmp_path, "is a folder")):
        with pytest.raises(CommandError, match=f"--html: {page} {problem}: name a file") as raised:
            call_command("delaytasks", "pipeline", "report", "--lake", str(tmp_path), "--html", str(page))
        assert raised.value.returncode == 2
