"""The installation of a game day: torture's, with metrics, a proxy to PostgreSQL, and its WAL on a small disk."""

import contextlib
import glob
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.servers import UNPRIVILEGED, PostgresServer, free_port
from tests.torture import faketime
from tests.torture.environment import DURABLE, Arena, arena
from tests.torture.faketime import Dial
from tests.torture.proxy import Proxy

SETTINGS = "tests.gameday.settings"
WAL_MEGABYTES = 128
WORKERS = ("worker1", "worker2", "worker3")  # the last one is started by whoever needs more workers
SKEWED = "worker2"


class PostgresOnSmallDisk(PostgresServer):
    """A PostgreSQL whose WAL is on a disk of its own, where this user may mount one."""

    def __init__(self, **options: str) -> None:
        super().__init__(**DURABLE, max_wal_size="64MB", min_wal_size="16MB", **options)
        self.disk = self.directory / "disk"
        self.has_disk = self._mount()
        if self.has_disk:
            self.initdb = ("--wal-segsize=1", f"--waldir={self.disk / 'wal'}")

    def _mount(self) -> bool:
        if os.geteuid():
            return False
        self.disk.mkdir()
        terms = f"size={WAL_MEGABYTES}m,mode=0700,uid={pwd.getpwnam(UNPRIVILEGED).pw_uid}"
        command = ["mount", "-t", "tmpfs", "-o", terms, "delaytasks-gameday", str(self.disk)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def resize_disk(self, megabytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={megabytes}m", str(self.disk)], check=True)

    @property
    def socket(self) -> Path:
        return self.directory / ".s.PGSQL.5432"

    def close(self) -> None:
        self.stop()
        if self.has_disk:
            subprocess.run(["umount", str(self.disk)], check=False)
        super().close()


def has_faketime() -> bool:
    return bool(glob.glob(faketime.LIBRARY))


@contextlib.contextmanager
def installation(directory: Path) -> Iterator[tuple[Arena, list[str]]]:
    """Start it; yield it and the targets of Prometheus. Without libfaketime it has no dial."""
    postgres = PostgresOnSmallDisk()
    with arena(directory, postgres=postgres, settings=SETTINGS) as there, Proxy(postgres.socket) as there.proxy:
        there.env["TMPDIR"] = str(directory)  # killed workers leave their metrics behind
        name = urlsplit(there.database_url).path
        there.env["DATABASE_URL"] = f"postgres://{postgres.user}@127.0.0.1:{there.proxy.port}{name}"
        ports = {worker: free_port() for worker in WORKERS}
        there.env_of |= {worker: {"METRICS_PORT": str(port)} for worker, port in ports.items()}
        there.env_of["web"] = {"METRICS_PORT": "1"}  # so that it serves /metrics, on its own port
        if has_faketime():
            there.dial = Dial(directory)
            there.env_of[SKEWED] |= there.dial.wrong(there.env)
        there.populate(workers=2, consumers=1)
        try:
            yield there, [f"127.0.0.1:{port}" for port in (there.port, *ports.values())]
        finally:
            there.proxy.heal()
            there.stop_all()
            faketime.sweep_up()
