"""A contestant's driver: a process that answers each line of JSON with one."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers import die_with_parent, stop_process, tail

ANSWER_SECONDS = 600.0  # a million jobs may be on their way


class DriverFailed(Exception):
    """A driver said that it could not, ended, or was silent for too long."""


class Driver:
    """A running driver. Its log is a file; what it says on stdout is for us alone."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.log = directory / "driver.log"
        self._waiting = b""
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    command, cwd=directory, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
                )  # fmt: skip
        except OSError as error:
            raise DriverFailed(f"{name}'s driver does not start: {error}.") from None

    def do(self, command: str, seconds: float = ANSWER_SECONDS, **fields: Any) -> dict[str, Any]:
        """The driver's answer. Raises DriverFailed."""
        line = json.dumps({"do": command, **fields}) + "\n"
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(line.encode())
            stdin.flush()
        except (OSError, ValueError):  # the pipe is broken, or closed
            raise self._failed(f"is gone before {command}") from None
        answer = json.loads(self._line(command, seconds))
        if "error" in answer:
            raise DriverFailed(f"{self.name}: {answer['error']}")
        return answer

    def _line(self, command: str, seconds: float) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._waiting:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.process.kill()  # or its answer would be taken for that to a later question
                self.process.wait()
                raise self._failed(f"did not answer {command} in {seconds:g} s")
            data = os.read(stdout.fileno(), 65_536)
            if not data:
                raise self._failed(f"ended during {command}")
            self._waiting += data
        line, _, self._waiting = self._waiting.partition(b"\n")
        return line

    def _failed(self, what: str) -> DriverFailed:
        return DriverFailed(f"{self.name}'s driver {what}. Its log ends:\n{tail(self.log, 15)}")

    @property
    def is_gone(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        """Say goodbye; end it if it stays."""
        if not self.is_gone:
            try:
                self.do("bye", seconds=5)
            except DriverFailed:
                pass  # it is ended below, whatever it said
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                pass  # what was still to be written has nobody to read it
        stop_process(self.process, seconds=5)
