"""The demo's Spark server: it starts, fails to start, and ends with the demo. `manage.py` is a small program here."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from delaytasks.pipeline.applications import serve
from project.demo import spark_server
from project.demo.spark_server import ServerFailed, SparkServer

from ...support.servers import wait_until

SERVES = """
import sys, time
print(f"Spark Connect server for --master sc://localhost:{sys.argv[-1]}; Ctrl-C ends it", flush=True)
time.sleep(600)
"""
DEMO = """
import sys, time
from pathlib import Path
from project.demo import spark_server
spark_server.MANAGE = Path(sys.argv[1])
with spark_server.SparkServer(Path(sys.argv[2])) as server:
    server.await_start()
    print(server.process.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def manage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "manage.py"
    program.write_text(SERVES)
    monkeypatch.setattr(spark_server, "MANAGE", program)
    monkeypatch.setenv(spark_server.VARIABLE, "replaced")
    return program


def test_it_serves_until_the_end_of_the_block(manage: Path, tmp_path: Path) -> None:
    assert spark_server.VARIABLE == serve.VARIABLE
    with SparkServer(tmp_path / "log") as server:
        assert server.await_start() == server.address
        assert os.environ[serve.VARIABLE] not in ("", "replaced")
    assert server.process.wait() == -signal.SIGTERM


def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log(manage: Path, tmp_path: Path) -> None:
    manage.write_text("raise SystemExit('Java is missing')")
    with (
        SparkServer(tmp_path / "log") as server,
        pytest.raises(ServerFailed, match=r"has not started.*\nJava is missing"),
    ):
        server.await_start()


def test_it_ends_with_a_killed_demo(manage: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DEMO, str(manage), str(tmp_path / "log")], stdout=subprocess.PIPE, text=True,
        cwd=Path(spark_server.__file__).parents[2],
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        server = int(demo.stdout.readline())
        demo.kill()
    wait_until(lambda: not Path(f"/proc/{server}").exists(), seconds=10, what="the server runs on")
