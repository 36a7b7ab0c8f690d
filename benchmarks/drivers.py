"""A contestant's driver: a process that reads JSON lines and answers each with one line."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.servers import die_with_parent, stop_process, tail

ANSWER_SECONDS = 600.0  # enough for a command with a million jobs


class DriverFailed(Exception):
    """A driver returned an error, exited or did not answer in time."""


class Driver:
    """A running driver. Answers come on standard output; standard error goes to a log file."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.log = directory / "driver.log"
        self._buffer = b""
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    command, cwd=directory, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
                )  # fmt: skip
        except OSError as error:
            raise DriverFailed(f"{name}'s driver does not start: {error}.") from None

    def do(self, command: str, seconds: float = ANSWER_SECONDS, **fields: Any) -> dict[str, Any]:
        """Send a command and return the answer. Raises DriverFailed."""
        line = json.dumps({"do": command, **fields}) + "\n"
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(line.encode())
            stdin.flush()
        except (OSError, ValueError):  # broken or closed pipe
            raise self._failed(f"exited before {command}") from None
        answer = json.loads(self._line(command, seconds))
        if "error" in answer:
            raise DriverFailed(f"{self.name}: {answer['error']}")
        return answer

    def _line(self, command: str, seconds: float) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.process.kill()  # a late answer would be mistaken for that of the next command
                self.process.wait()
                raise self._failed(f"did not answer {command} in {seconds:g} s")
            data = os.read(stdout.fileno(), 65_536)
            if not data:
                raise self._failed(f"exited during {command}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _failed(self, problem: str) -> DriverFailed:
        return DriverFailed(f"{self.name}'s driver {problem}. The end of its log:\n{tail(self.log, 15)}")

    @property
    def has_exited(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        """Ask the driver to exit; stop it if it does not."""
        if not self.has_exited:
            try:
                self.do("bye", seconds=5)
            except DriverFailed:
                pass  # it is stopped below in any case
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                pass  # unsent data; the reader is gone
        stop_process(self.process, seconds=5)
