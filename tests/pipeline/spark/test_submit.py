"""A run by spark-submit: its command line and its limits."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delaytasks.pipeline import __main__ as run
from delaytasks.pipeline.config import BadSettings, Settings
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.spark import connect, package, submit

SHOP = Database("postgresql", "shop", host="db", user="me", password="hush")


def test_the_command_line_has_the_package_and_the_master_and_no_secret(tmp_path: Path) -> None:
    secret = {"spark.hadoop.fs.s3a.secret.key": "a=b: c\\d\né"}
    command = submit.command("report", Settings(SHOP, "/lake", "spark://m:7077", secret), tmp_path)

    assert command[0].endswith("/bin/spark-submit")
    assert command[-2:] == [str(package.ROOT / "pipeline" / "__main__.py"), "report"]
    about = {name: command[n + 1] for n, name in enumerate(command[:-1])}
    assert (about["--master"], about["--py-files"]) == ("spark://m:7077", str(package.zipped(tmp_path)))
    assert about["--deploy-mode"] == "client", "also if spark-defaults.conf has another mode"
    assert not any(expected in word for word in command for expected in ("hush", "secret", "a=b"))
    (options,) = tmp_path.glob("*.properties")
    assert options.read_text() == r"spark.hadoop.fs.s3a.secret.key=a\=b\:\ c\\d\n\u00e9" + "\n"
    assert stat.S_IMODE(options.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("master", "conf", "why"),
    [
        ("k8s://https://k", ["spark.submit.deployMode=cluster"], "runs the driver on another machine"),
        ("sc://localhost:1/;token=hush", [], "^sc://localhost:1 is a Spark Connect server"),
        ("yarn", ["spark.master=local"], "with --master, not with --conf spark.master"),
    ],
)
@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_unsupported_submissions_are_refused_with_a_message(
    master: str, conf: list[str], why: str, tmp_path: Path
) -> None:
    options = [word for each in conf for word in ("--conf", each)]
    with pytest.raises(CommandError, match=why) as raised:
        call_command("delaytasks", "pipeline", "report", "--submit", "--lake", str(tmp_path), "--master", master,
                     *options)  # fmt: skip
    assert raised.value.returncode == ExitCode.BAD_INPUT


def test_the_submitted_file_needs_only_the_zip(tmp_path: Path) -> None:
    """Like on a cluster's driver: a copy of the file in some folder, and the zip."""
    script = shutil.copy(package.ROOT / "pipeline" / "__main__.py", tmp_path)
    environment = {"PATH": os.defpath, "PYTHONPATH": str(package.zipped(tmp_path))}
    done = subprocess.run([sys.executable, script, "report"], capture_output=True, text=True, env=environment)

    assert (done.returncode, done.stderr) == (ExitCode.BAD_INPUT, "")
    assert json.loads(done.stdout)["error"] == "BadSettings"


def test_an_absent_connect_server_is_reported_at_once_without_the_token(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    def expected(master: str) -> str:
        assert run.main(["report"], Settings(SHOP, str(tmp_path), master).environment()) == ExitCode.COULD_NOT_RUN
        answer = json.loads(capsys.readouterr().out)
        assert answer["error"] == "ServerUnavailable"
        return answer["message"]

    monkeypatch.setattr(connect.importlib.util, "find_spec", lambda name: None)
    assert 'pip install "delaytasks[pipeline]"' in expected("sc://localhost")
    monkeypatch.undo()
    monkeypatch.setattr(connect, "WAIT_SECONDS", 0.5)
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        message = expected(f"sc://127.0.0.1:{port}/;token=hush")
    assert message == (
        f"No Spark Connect server answers at sc://127.0.0.1:{port} with encryption, which Spark's client uses for a "
        "token and any host but localhost."
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert expected(f"sc://localhost:{port}") == f"No Spark Connect server answers at sc://localhost:{port}."
    for wrong in ("sc://localhost:many", "sc://h:15002;token=hush"):
        assert "must be sc://host:port, not 'sc://" in (message := expected(wrong))
        assert "hush" not in message


def test_a_spark_home_without_spark_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(submit, "_find_spark_home", lambda: "/opt/gone")
    with pytest.raises(BadSettings, match="There is no /opt/gone/bin/spark-submit: set SPARK_HOME"):
        submit.command("report", Settings(SHOP, "/lake", "yarn"), tmp_path)


def test_a_master_is_shown_without_its_token(tmp_path: Path) -> None:
    shop = Database("sqlite", str(tmp_path / "db"))
    for database, master in ((shop, "sc://127.0.0.1:15002/;token=hush"), (SHOP, "sx://h:1/;token=hush")):
        with pytest.raises(BadSettings, match=re.escape(master.partition("/;")[0])) as raised:
            Settings(database, "/lake", master)
        assert "hush" not in str(raised.value)
