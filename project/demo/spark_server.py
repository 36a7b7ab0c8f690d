"""The demo's Spark server: `pipeline serve`, which starts while the month is simulated and answers all runs."""

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from project.run.preflight import find_free_port

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # environment variable of the server and of its clients
START_SECONDS = 300.0  # maximum
POLL_SECONDS = 0.1
STOP_SECONDS = 30.0  # then manage.py is killed, and Spark ends because it watches manage.py
LAST = 2000  # number of characters of the log that an error shows
PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # of Linux; found here, because a forked process should load nothing


class ServerFailed(Exception):
    """The server has not started. The message has the end of its log."""


class SparkServer:
    """A Spark Connect server on loopback, as a child process that runs until the end of the block.

    log   file for the server's output
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        os.environ[VARIABLE] = secrets.token_hex()
        port = find_free_port()
        self.address = f"sc://localhost:{port}"
        self.command = ["delaytasks", "pipeline", "serve", "--port", str(port)]

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(MANAGE), *self.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C reaches only the demo, which then stops the server
                preexec_fn=end_with_parent,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        finally:
            self.process.kill()

    def await_start(self) -> str:
        """Wait until the server has started. Return its address for --master. Raises ServerFailed."""
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            if f"{self.address};" in self._output():  # serve's own message
                return self.address
            time.sleep(POLL_SECONDS)
        raise ServerFailed(
            f"The Spark server has not started. Its log, {self.log}, ends:\n{self._output()[-LAST:].strip()}"
        )

    def _output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def end_with_parent() -> None:
    """Let Linux send SIGTERM to this process when its parent ends, even if that is killed. Does nothing elsewhere."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
