"""The Redis of `make run` listens only on a socket file that no other user may open."""

import stat
import subprocess
from pathlib import Path

import redis

from project.run import programs
from tests.support.servers import die_with_parent, make_directory, redis_binary, stop_process, wait_until

LISTENING = "0A"  # the state in /proc/net/tcp


def listening_sockets(pid: int) -> list[str]:
    """Return the addresses on which a process listens, IPv4 and IPv6, as /proc spells them."""
    inodes = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return [line[1] for line in lines if line[3] == LISTENING and f"socket:[{line[9]}]" in inodes]


def test_the_embedded_redis_listens_on_no_network_address() -> None:
    var = make_directory("delaytasks-run-")
    for folder in ("run", "redis"):
        (var / folder).mkdir()
    path = var / "run" / "redis.sock"
    program = programs.redis(Path(redis_binary()), var, path)
    process = subprocess.Popen(program.command, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent())
    try:
        wait_until(program.is_up, seconds=20, what="the embedded Redis to answer")
        assert redis.Redis(unix_socket_path=str(path)).ping()
        assert listening_sockets(process.pid) == []
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    finally:
        stop_process(process)
