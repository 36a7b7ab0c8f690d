"""The Spark Connect server that stays: on loopback only, with a token, and without a Java that outlives it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from delaytasks.pipeline.applications import serve
from delaytasks.pipeline.config import BadSettings, Settings
from delaytasks.pipeline.sources.database import Database

from ...support.servers import free_port, stop_process, wait_until
from ..conftest import SMALL

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1 in /proc/net/tcp and /proc/net/tcp6
LISTENS = "0A"


def listening(port: int) -> set[str]:
    """Return the addresses at which this port listens."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {line[1].partition(":")[0] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == LISTENS}


def test_the_server_listens_on_loopback_and_ends_with_its_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(serve.VARIABLE, "secret")
    port = free_port()
    conf = serve.options(SMALL, master="local[1]", port=port)
    settings = Settings(
        Database("sqlite", str(tmp_path / "db")), str(tmp_path), "local[1]", conf, {"port": port, "parent": os.getpid()}
    )
    with subprocess.Popen(
        [sys.executable, "-m", "delaytasks.pipeline", "serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, **settings.environment()},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert f"sc://localhost:{port}" in json.loads(process.stdout.readline())["progress"]
        assert listening(port)
        assert listening(port) <= LOOPBACK
        (java,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        code = stop_process(process)
        answer = json.loads(process.stdout.read())
    assert (code, list(answer)) == (0, ["seconds"])
    wait_until(lambda: not Path(f"/proc/{java}").exists(), seconds=10, what="Java runs on")


def test_a_server_needs_a_token_and_a_master_that_is_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(serve.VARIABLE, raising=False)
    words = ["delaytasks", "pipeline", "serve", "--lake", str(tmp_path)]
    with pytest.raises(CommandError, match="Set the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN") as raised:
        call_command(*words)
    assert raised.value.returncode == 2
    monkeypatch.setenv(serve.VARIABLE, "secret")
    with pytest.raises(CommandError, match="leave out --submit"):
        call_command(*words, "--submit")
    with pytest.raises(BadSettings, match="sc://elsewhere is a Spark Connect server already"):
        serve.options({}, master="sc://elsewhere", port=1)
    site = {"spark.plugins": "a.b", "spark.connect.grpc.binding.address": "0.0.0.0"}
    assert serve.options(site, master="local[*]", port=7) == {
        "spark.plugins": f"a.b,{serve.PLUGIN}", "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "7",
    }  # fmt: skip
