"""manage.py delaytasks pipeline: a run in its own process, on the test's database."""

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from delaytasks import clock
from delaytasks.db import dialects
from delaytasks.maintenance import retention
from delaytasks.management.commands.delaytasks import Command
from delaytasks.management.subcommands.pipeline import archive, audit, load, process, report
from delaytasks.management.subcommands.pipeline.command import APPLICATIONS
from delaytasks.models import AuditEntry, Job
from delaytasks.pipeline import exit_codes
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.states import State

from .conftest import SMALL

pytestmark = pytest.mark.only_on("sqlite")  # on PostgreSQL there are a cluster's runs, and those that are killed
ANSWER = {"jobs": 0, "events": 0, "partitions": 0, "pruned": 0, "left": 0, "withdrawn": 0, "seconds": 0}
CONF = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]


def test_the_command_archives_in_its_own_process_and_answers_in_json(
    database: Database, job: Callable[..., Job], tmp_path: Path, capfd: Any
) -> None:
    job("order:1", state=State.FINISHED, due_at=dialects.database_now("default") - timedelta(days=3))
    call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path), "--older-than-days", "2",
                 "--master", "local[1]", "--json", *CONF)  # fmt: skip
    answer = json.loads(capfd.readouterr().out)

    assert (answer["jobs"], answer["pruned"]) == (1, 1)
    assert not Job.objects.exists()
    assert (tmp_path / "default" / "archive.json").exists()
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.request) == ("jobs.archived", "manage.py delaytasks pipeline")
    assert entry.after == {"older_than_days": 2, "dead": False, "prune": True, "jobs": 1, "events": 0, "pruned": 1}


def test_a_refusal_of_the_run_is_the_commands_message(database: Database, tmp_path: Path) -> None:
    with database.lock("archive"), pytest.raises(CommandError, match="Another archive of") as raised:
        call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path), "--master", "local[1]", *CONF)
    assert raised.value.returncode == ExitCode.COULD_NOT_RUN


def test_dead_runs_and_bugs_do_not_have_the_exit_code_for_faults(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(*program: str) -> int:
        monkeypatch.setattr(process, "command_of", lambda *_, **__: contextlib.nullcontext((program, {})))
        with pytest.raises(CommandError) as raised:
            call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path))
        return raised.value.returncode

    (tmp_path / "default" / "archive").mkdir(parents=True)
    assert code("sh", "-c", "kill -9 $$") == ExitCode.COULD_NOT_RUN
    assert code("sh", "-c", "exit 1") == ExitCode.COULD_NOT_RUN
    later = json.dumps(ANSWER | {"refused": "Later."})
    assert code("printf", f"{later}\nShutdown hook called\n") == ExitCode.FAULTS, "Spark may log to stdout"
    assert code("echo", "{}") == ExitCode.COULD_NOT_RUN  # an answer that the command cannot tell
    assert code("echo", later) == ExitCode.FAULTS
    assert code("echo", json.dumps(ANSWER | {"refused": "Later.", "exit_code": 3})) == ExitCode.COULD_NOT_RUN


def test_an_archive_counts_from_the_time_that_the_command_has_noted(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it could prune a run of a schedule that a later backfill would make again."""
    noted: list[datetime] = []
    asked: list[dict[str, Any]] = []

    def answer(*given: Any) -> dict[str, Any]:
        asked.append(given[-1])
        return ANSWER

    monkeypatch.setattr(archive.runs, "note", lambda using, moment: noted.append(moment))
    monkeypatch.setattr(archive, "run_application", answer)
    call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path), "--older-than-days", "0.5")
    assert [each["now_ms"] for each in asked] == [clock.to_ms(each + timedelta(days=0.5)) for each in noted]


def test_an_archive_says_that_retention_deletes_jobs_before_they_are_archived(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, capsys: Any
) -> None:
    def answer(lake: Path | None, retention: dict[str, Any]) -> str:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": lake and str(lake), "RETENTION": retention}
        call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path))
        return str(capsys.readouterr().out)

    monkeypatch.setattr(archive, "run_application", lambda *_: ANSWER)
    (tmp_path / "default" / "archive").mkdir(parents=True)
    ages = {"*": {"ended": timedelta(days=9)}}
    assert "RETENTION deletes jobs before they are archived" in answer(None, ages)
    for lake, retention_ in ((tmp_path, ages), (tmp_path / "not mounted", ages), (None, {})):
        assert "RETENTION" not in answer(lake, retention_)


def test_an_audit_says_that_jobs_which_retention_has_deleted_are_reported_as_missing(
    tmp_path: Path, settings: Any
) -> None:
    assert audit._retention_warning("default", None) == []
    lake = {"RETENTION": {"order.*": {"ended": timedelta(days=9)}}, "LAKE": str(tmp_path)}
    settings.DELAYTASKS = {**settings.DELAYTASKS, **lake}
    (warning,) = audit._retention_warning("default", None)
    assert "RETENTION deletes ended jobs after 9 days, 0:00:00, and no archive has them." in warning
    other = tmp_path / "other"  # of --lake
    (other / "default").mkdir(parents=True)
    (other / "default" / "archive.json").touch()
    assert audit._retention_warning("default", str(other)) == []
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "archive.json").touch()
    assert audit._retention_warning("default", None) == []


def test_a_report_says_that_jobs_were_deleted_since_the_last_one(tmp_path: Path, settings: Any) -> None:
    last_at = (datetime.now(UTC) - timedelta(hours=8)).isoformat()
    for hours, warnings in ((9, 1), (11, 0)):
        lake = {"RETENTION": {"*": {"ended": timedelta(hours=hours)}}, "LAKE": str(tmp_path)}
        settings.DELAYTASKS = {**settings.DELAYTASKS, **lake}
        assert len(report._retention_warning("default", None, last_at)) == warnings
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RETENTION": {"*": {"dead": timedelta(hours=1)}}}
    assert report._retention_warning("default", None, None) == [], "the first report"
    (warning,) = report._retention_warning("default", None, last_at)
    assert warning.startswith(
        "RETENTION deletes ended jobs after 1:00:00, and no archive has them. The last report is of "
    )
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "archive.json").touch()
    assert report._retention_warning("default", None, last_at) == []


def test_where_the_lake_is_not_mounted_no_second_archive_begins_and_nothing_is_computed_without_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def archived(*_: Any) -> dict[str, Any]:
        (tmp_path / "default").mkdir(exist_ok=True)
        (tmp_path / "default" / "archive.json").touch()
        return ANSWER

    monkeypatch.setattr(archive, "run_application", archived)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": str(tmp_path)}
    call_command("delaytasks", "pipeline", "archive")
    call_command("delaytasks", "pipeline", "archive")
    with pytest.raises(CommandError, match="default has an archive"):
        call_command("delaytasks", "pipeline", "forget-archive")
    (tmp_path / "default" / "archive.json").unlink()
    verbs = [["pipeline", name] for name in ("archive", "report", "stream")]
    for words in (*verbs, ["pipeline", "audit", "--rule", "a.toml"], ["prune", "--older-than", "30d"]):
        with pytest.raises(CommandError, match=r"last archived .* has no archive here") as raised:
            call_command("delaytasks", *words)
        assert raised.value.returncode == (ExitCode.COULD_NOT_RUN if words[0] == "pipeline" else 1)
    call_command("delaytasks", "pipeline", "forget-archive")
    assert AuditEntry.objects.latest("id").action == "archive.forgotten"
    call_command("delaytasks", "prune", "--older-than", "30d")
    call_command("delaytasks", "pipeline", "archive")


def test_an_archive_that_failed_before_it_began_does_not_stop_the_retention(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        raise CommandError("There is no Java.")

    monkeypatch.setattr(archive, "run_application", fail)
    with pytest.raises(CommandError, match="no Java"):
        call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path))
    assert retention.missing_archive("default", str(tmp_path)) is None


def test_a_load_is_one_entry_in_the_audit_log_also_if_it_fails(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_connection(*_: Any) -> dict[str, Any]:
        connection.ensure_connection()
        connection.connection.close()  # as a server that closes idle connections
        raise CommandError("Spark is gone.")

    monkeypatch.setattr(load, "run_application", lose_connection)
    with pytest.raises(CommandError, match="Spark is gone"):
        call_command("delaytasks", "pipeline", "load", "s3a://anna:hunter2@lake/jobs", "--lake", str(tmp_path))
    connection.close()
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.after["failed"]) == ("jobs.loaded", "CommandError")
    assert "hunter2" not in entry.after["source"]


def test_each_application_documents_its_exit_codes(capsys: Any) -> None:
    for question in APPLICATIONS:
        with pytest.raises(SystemExit):
            call_command("delaytasks", "pipeline", question, "--help")
        assert " ".join(exit_codes.HELP.split()) in " ".join(capsys.readouterr().out.split())


def test_minutes_of_a_missing_lake_are_an_error(database: Database, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"The lake {tmp_path}/gone does not exist. Mount it") as raised:
        call_command("delaytasks", "pipeline", "minutes", "--lake", f"{tmp_path}/gone")
    assert raised.value.returncode == ExitCode.COULD_NOT_RUN


def test_without_a_lake_the_command_asks_for_one(database: Database) -> None:
    with pytest.raises(CommandError, match="--lake FOLDER, or DELAYTASKS") as raised:
        call_command("delaytasks", "pipeline", "report")
    assert raised.value.returncode == 2


@pytest.mark.parametrize("application", [*APPLICATIONS, "predict", ""])
@pytest.mark.parametrize("words", [["--colour", "red"], ["--conf", "spark.x"], ["--lake"], ["more"]])
def test_wrong_arguments_of_each_application_end_with_the_exit_code_for_bad_input(
    application: str, words: list[str], capsys: Any
) -> None:
    """As from a shell: call_command() raises another exception."""
    rule = ["--rule", "a.toml"] if application == "audit" else ["a.csv"] if application == "load" else []
    with pytest.raises(SystemExit) as raised:
        Command().run_from_argv(["manage.py", "delaytasks", "pipeline", *filter(None, [application]), *rule, *words])
    assert raised.value.code == ExitCode.BAD_INPUT
    assert ": error: " in capsys.readouterr().err.splitlines()[-1]


def test_the_database_may_be_given_before_and_after_the_application(database: Database, tmp_path: Path) -> None:
    for words in (["--database", "default", "minutes"], ["minutes", "--database", "default"]):
        call_command("delaytasks", "pipeline", *words, "--lake", str(tmp_path))
    with pytest.raises(CommandError, match="invalid choice: 'mars'"):
        call_command("delaytasks", "pipeline", "minutes", "--database", "mars", "--lake", str(tmp_path))


@pytest.mark.parametrize("application", ["minutes", "convert", "optimize"])
def test_a_lake_that_this_user_may_not_read_is_reported_in_a_sentence(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, application: str
) -> None:
    def refuses(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    for name in ("has", "runs"):
        monkeypatch.setattr(Lake, name, refuses)
    with pytest.raises(CommandError, match=r"Cannot use a file: .*Permission denied.* give this user perm") as raised:
        call_command("delaytasks", "pipeline", application, "--lake", str(tmp_path))
    assert raised.value.returncode == ExitCode.COULD_NOT_RUN
    assert "Traceback" not in capsys.readouterr().err


def test_an_absent_archive_is_not_optimized(database: Database, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"nothing to optimize: .*/default has no archive\.json") as raised:
        call_command("delaytasks", "pipeline", "optimize", "--lake", str(tmp_path))
    assert raised.value.returncode == ExitCode.COULD_NOT_RUN


def test_bad_options_are_usage_errors(database: Database, tmp_path: Path) -> None:
    for words in (["--ahead-hours", "0"], ["--conf", "spark.x"]):
        with pytest.raises(CommandError):
            call_command("delaytasks", "pipeline", "report", "--lake", str(tmp_path), *words)
    with pytest.raises(CommandError):
        call_command("delaytasks", "pipeline", "archive", "--lake", str(tmp_path), "--older-than-days", "nan")
    for page, problem in ((tmp_path / "no" / "x.html", "has no folder"), (tmp_path, "is a folder")):
        with pytest.raises(CommandError, match=f"--html: {page} {problem}: give a file") as raised:
            call_command("delaytasks", "pipeline", "report", "--lake", str(tmp_path), "--html", str(page))
        assert raised.value.returncode == 2


@pytest.mark.parametrize("option", ["spark.driver.memory=lots", "spark.sql.shuffle.partitions=many"])
def test_a_bad_value_of_a_spark_option_is_a_usage_error(database: Database, tmp_path: Path, option: str) -> None:
    """Java itself refuses the first one, so it is refused before Java starts."""
    name, value = option.split("=")
    with pytest.raises(
        CommandError, match=rf"The value '{value}' (of|in the config) \"?{name}\"? is invalid"
    ) as raised:
        call_command("delaytasks", "pipeline", "report", "--lake", str(tmp_path), *CONF, "--conf", option)
    assert raised.value.returncode == ExitCode.BAD_INPUT
