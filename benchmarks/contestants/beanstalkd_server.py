"""beanstalkd as a child process of its driver, with a binlog, on a loopback port."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.support.servers import die_with_parent, free_port, stop_process

FSYNC_MS = 50  # beanstalkd's own default
START_SECONDS = 10


class Missing(Exception):
    """beanstalkd is not installed: install the Debian package beanstalkd."""

    def __str__(self) -> str:
        return self.__doc__ or ""


class Beanstalkd:
    """A server on 127.0.0.1:`port`; the port stays the same after each start."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen | None = None

    @staticmethod
    def version() -> str:
        """Return its name and version. Raises Missing."""
        return subprocess.run([_binary(), "-v"], capture_output=True, text=True, check=True).stdout.strip()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start_empty(self) -> None:
        """Start without earlier jobs; return when it accepts connections. Raises TimeoutError, Missing."""
        self.stop()
        binlog = Path(os.environ["BENCH_DIR"], "binlog")
        shutil.rmtree(binlog, ignore_errors=True)
        binlog.mkdir(parents=True)
        command = [_binary(), "-l", "127.0.0.1", "-p", str(self.port), "-b", str(binlog), "-f", str(FSYNC_MS)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent())
        self._await()

    def stop(self) -> None:
        if self._process:
            stop_process(self._process)
            self._process = None

    def _await(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                time.sleep(0.02)
            else:
                return
        raise TimeoutError(f"beanstalkd does not accept connections on port {self.port}")


def _binary() -> str:
    path = shutil.which("beanstalkd")
    if not path:
        raise Missing
    return path
