"""A run by spark-submit: what its command line says, and what it does not."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delaytasks.pipeline import connect, package, run, submit
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.settings import BadSettings, Settings

SHOP = Database("postgresql", "shop", host="db", user="me", password="hush")


def test_the_command_line_has_the_package_and_the_master_and_no_secret(tmp_path: Path) -> None:
    secret = {"spark.hadoop.fs.s3a.secret.key": "a=b: c\\d\né"}
    command = submit.command("report", Settings(SHOP, "/lake", "spark://m:7077", secret), tmp_path)

    assert command[0].endswith("/bin/spark-submit")
    assert command[-2:] == [str(package.ROOT / "pipeline" / "run.py"), "report"]
    about = {name: command[n + 1] for n, name in enumerate(command[:-1])}
    assert (about["--master"], about["--py-files"]) == ("spark://m:7077", str(package.zipped(tmp_path)))
    assert not any(said in word for word in command for said in ("hush", "secret", "a=b"))
    (options,) = tmp_path.glob("*.properties")
    assert options.read_text() == r"spark.hadoop.fs.s3a.secret.key=a\=b\:\ c\\d\n\u00e9" + "\n"
    assert stat.S_IMODE(options.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("master", "conf", "why"),
    [
        ("k8s://https://k", ["spark.submit.deployMode=cluster"], "driver runs where this environment is not"),
        ("sc://localhost", [], "has a Spark already"),
    ],
)
@pytest.mark.only_on("postgresql")
def test_what_cannot_be_submitted_from_here_is_refused_with_a_sentence(
    master: str, conf: list[str], why: str, tmp_path: Path
) -> None:
    options = [word for each in conf for word in ("--conf", each)]
    with pytest.raises(CommandError, match=why) as raised:
        call_command("delaytasks", "pipeline", "report", "--submit", "--lake", str(tmp_path), "--master", master,
                     *options)  # fmt: skip
    assert raised.value.returncode == run.USAGE


def test_the_file_that_is_submitted_needs_nothing_of_the_app_but_the_zip(tmp_path: Path) -> None:
    """As on a cluster's driver: a copy of run.py in some folder, and the zip beside it."""
    script = shutil.copy(package.ROOT / "pipeline" / "run.py", tmp_path)
    environment = {"PATH": os.defpath, "PYTHONPATH": str(package.zipped(tmp_path))}
    done = subprocess.run([sys.executable, script, "report"], capture_output=True, text=True, env=environment)

    assert (done.returncode, done.stderr) == (run.USAGE, "")
    assert json.loads(done.stdout)["error"] == "BadSettings"


def test_a_connect_server_that_is_not_there_is_said_at_once_and_without_the_token(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    def said(master: str) -> str:
        assert run.main(["report"], Settings(SHOP, str(tmp_path), master).environment()) == run.REFUSED
        answer = json.loads(capsys.readouterr().out)
        assert answer["error"] == "ServerAway"
        return answer["message"]

    monkeypatch.setattr(connect.importlib.util, "find_spec", lambda name: None)
    assert 'pip install "pyspark[connect]"' in said("sc://localhost")
    monkeypatch.setattr(connect.importlib.util, "find_spec", lambda name: True)
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        message = said(f"sc://127.0.0.1:{port}/;token=hush")
    assert f"No Spark Connect server answers at 127.0.0.1:{port}" in message
    assert "hush" not in message
    assert "host:port was expected" in said("sc://localhost:many")


def test_a_jdbc_driver_is_for_a_server_that_it_can_reach() -> None:
    def problem(**about: Any) -> str:
        with pytest.raises(BadSettings) as raised:
            Settings(Database(**{"vendor": "postgresql", "name": "shop", "jdbc": "org.postgresql.Driver"} | about), "/")
        return str(raised.value)

    assert "not for sqlite" in problem(vendor="sqlite")
    assert "the unix socket in /run/pg" in problem(host="/run/pg")
    assert "no host" in problem()
    assert "knows no passfile, service" in problem(host="db", libpq='{"service": "s", "passfile": "p"}')
