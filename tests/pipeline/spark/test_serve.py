"""The Spark Connect server that stays: on loopback only, with a token, for clients. It and its Java end together."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow
import pytest
from django.core.management import CommandError, call_command
from pyarrow import parquet

from delaytasks.models import Job
from delaytasks.pipeline.applications import serve
from delaytasks.pipeline.config import BadSettings, Settings
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Database
from delaytasks.states import Outcome, State

from ...support.servers import free_port, stop_process, wait_until
from ..conftest import SMALL, at, happened

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1 in /proc/net/tcp and /proc/net/tcp6
LISTENS = "0A"
RULE = """[[rule]]
topic = "order.close"
parquet = "orders.parquet"
columns = { id = "bigint", due = "timestamp", segment = "string", total = "double" }
key = "concat('order:', id)"
since = "due"
carry = ["segment"]
amount = "total"
outcome = "begun_at >= due AND total < 11"
"""


def listening(port: int) -> set[str]:
    """Return the addresses at which this port listens."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {line[1].partition(":")[0] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == LISTENS}


@pytest.mark.on_both
def test_the_server_listens_on_loopback_answers_clients_with_the_token_and_ends_with_its_java(
    database: Database, job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv(serve.VARIABLE, "secret")
    happened(job("order:1", state=State.FINISHED), Outcome.FINISHED, at("02-01 12:00"))
    port = free_port()
    conf = serve.options(SMALL, master="local[1]", port=port)
    settings = Settings(database, str(tmp_path), "local[1]", conf, {"port": port, "parent": os.getpid()})
    with subprocess.Popen(
        [sys.executable, "-m", "delaytasks.pipeline", "serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, **settings.environment()},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert f"sc://localhost:{port}" in json.loads(process.stdout.readline())["progress"]
        assert listening(port)
        assert listening(port) <= LOOPBACK
        (java,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        try:
            rule = audit_by_client(port, tmp_path, capfd)
            report = report_by_client(port, tmp_path, capfd)
            monkeypatch.setenv(serve.VARIABLE, "wrong")
            with pytest.raises(CommandError, match=r"refuses this client: .*Set the environment variable") as refused:
                report_by_client(port, tmp_path, capfd)
            if database.vendor == "sqlite":  # on the other database the server is stopped
                os.kill(java, signal.SIGKILL)
                process.wait(60)
        finally:
            code = stop_process(process)
        answer = json.loads(process.stdout.read())
    assert {name: each["count"] for name, each in rule["classes"].items() if each["count"]} == {"kept": 1, "missing": 1}
    assert [(each["value"], each["faults"], each["cost"]) for each in rule["dimensions"]["segment"]] == [
        ("gold", 1, "20.5"), ("basic", 0, "0"),
    ]  # fmt: skip
    assert (rule["total"]["outcome_yes"], parquet.read_table(rule["missing"]).num_rows) == (1, 1)
    assert (report["rows"], report["since"]) == (1, None)
    assert refused.value.returncode == ExitCode.COULD_NOT_RUN
    if database.vendor == "sqlite":
        assert (code, answer["error"]) == (ExitCode.COULD_NOT_RUN, "ServerUnavailable"), answer
        assert "Spark has ended: its Java process was killed" in answer["message"]
    else:
        assert (code, list(answer)) == (0, ["seconds"])
    wait_until(lambda: not Path(f"/proc/{java}").exists(), seconds=10, what="Java runs on")


def audit_by_client(port: int, folder: Path, capfd: Any) -> dict[str, Any]:
    """Audit two orders, of which the second has no job, as a client of the server. Return the rule's answer."""
    kinds = pyarrow.schema([("id", pyarrow.int64()), ("due", pyarrow.timestamp("us", "UTC")),
                            ("segment", pyarrow.string()), ("total", pyarrow.float64())])  # fmt: skip
    orders = [{"id": 1, "due": at("02-01 12:00"), "segment": "basic", "total": 10.0},
              {"id": 2, "due": at("02-01 12:00"), "segment": "gold", "total": 20.5}]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(orders, schema=kinds), folder / "orders.parquet")
    (folder / "audit.toml").write_text(RULE)
    words = ["--rule", str(folder / "audit.toml"), "--master", f"sc://localhost:{port}", "--lake", str(folder / "lake")]
    with pytest.raises(CommandError, match="1 missing") as raised:
        call_command("delaytasks", "pipeline", "audit", *words, "--json")
    assert raised.value.returncode == ExitCode.FAULTS
    (rule,) = json.loads(capfd.readouterr().out)["rules"]
    return cast(dict[str, Any], rule)


def report_by_client(port: int, folder: Path, capfd: Any) -> dict[str, Any]:
    """Ask for a report as a client of the server, and return the answer."""
    capfd.readouterr()
    words = ["--master", f"sc://localhost:{port}", "--lake", str(folder / "lake")]
    call_command("delaytasks", "pipeline", "report", *words, "--json")
    return cast(dict[str, Any], json.loads(capfd.readouterr().out))


def test_a_server_needs_a_token_and_a_master_that_is_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(serve.VARIABLE, raising=False)
    words = ["delaytasks", "pipeline", "serve", "--lake", str(tmp_path)]
    with pytest.raises(CommandError, match="Set the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN") as raised:
        call_command(*words)
    assert raised.value.returncode == 2
    monkeypatch.setenv(serve.VARIABLE, "secret")
    with pytest.raises(CommandError, match="leave out --submit"):
        call_command(*words, "--submit")
    with pytest.raises(BadSettings, match="sc://elsewhere is already a Spark Connect server"):
        serve.options({}, master="sc://elsewhere", port=1)
    site = {"spark.plugins": "a.b", "spark.connect.grpc.binding.address": "0.0.0.0"}
    assert serve.options(site, master="local[*]", port=7) == {
        "spark.plugins": f"a.b,{serve.PLUGIN}", "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "7",
    }  # fmt: skip
