"""Worker processes. Each leads its own session, so that all its children can be found and stopped."""

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.servers import die_with_parent, stop_process

STOP_SECONDS = 10


def start(command: list[str], env: Mapping[str, str], directory: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command, cwd=directory, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
        )  # fmt: skip


def stop_all(running: Iterable[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to all, as a supervisor does, and wait; then kill what is left of their process groups."""
    running = list(running)
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in running:
        _await(process)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the group has no processes left


def _await(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        stop_process(process, how=signal.SIGKILL)


def of_sessions(leaders: Iterable[int]) -> list[int]:
    """Return the process ids in the sessions of these leaders, including their own. Linux only."""
    sessions = set(leaders)
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) in sessions]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None  # the process has exited
