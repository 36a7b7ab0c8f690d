"""A PostgreSQL primary with a streaming standby, which takes over when the primary is killed."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.support.servers import PostgresServer, tail, wait_until

from .faketime import wrong_by

NAME = "standby"  # for synchronous_standby_names


class Standby(PostgresServer):
    """A copy of a running server, which follows it.

    ahead_seconds   how far its clock is ahead; negative: behind
    """

    name = "standby"

    def __init__(self, primary: PostgresServer, *, ahead_seconds: int = 0) -> None:
        super().__init__(**primary.options)
        self.primary, self.ahead_seconds = primary, ahead_seconds

    def _environment(self) -> dict[str, str]:
        env = super()._environment()
        return env | wrong_by(self.ahead_seconds, env) if self.ahead_seconds else env

    def _initdb(self) -> None:
        source = f"host={self.primary.directory} user={self.user} application_name={NAME}"
        command = [str(self.binaries / "pg_basebackup"), "-d", source, "-D", str(self.data), "-R", "--no-sync"]
        done = subprocess.run(
            [*command, "--checkpoint=fast"],
            capture_output=True, text=True, stdin=subprocess.DEVNULL, env=self._environment(), **self.identity,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


class ReplicatedServer(PostgresServer):
    """A primary and its standby, started together. Clients have the addresses of both: libpq takes the writable one.

    synchronous     a commit waits for the standby's disk
    ahead_seconds   how far the standby's clock is ahead
    """

    def __init__(self, *, synchronous: bool = True, ahead_seconds: int = 0, **options: str) -> None:
        super().__init__(**options)
        self.synchronous = synchronous
        self.standby = Standby(self, ahead_seconds=ahead_seconds)

    def start(self) -> None:
        super().start()
        self.standby.start()
        with PostgresServer.connect(self, autocommit=True) as connection:
            if self.synchronous:
                connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
                connection.execute("SELECT pg_reload_conf()")
            followed = "SELECT sync_state FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
            wanted = ("sync" if self.synchronous else "async",)
            wait_until(
                lambda: connection.execute(followed, [NAME]).fetchone() == wanted,
                seconds=20, what=lambda: f"the standby to follow:\n{tail(self.standby.log)}",
            )  # fmt: skip

    def close(self) -> None:
        self.standby.close()
        super().close()

    # The addresses of both

    @property
    def hosts(self) -> str:
        return f"{self.directory},{self.standby.directory}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection:
        return psycopg.connect(
            host=self.hosts, user=self.user, dbname=database, connect_timeout=5,
            target_session_attrs="read-write", **options,
        )  # fmt: skip

    def answers(self) -> bool:
        try:
            PostgresServer.connect(self).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str = "postgres") -> str:
        hosts = self.hosts.replace("/", "%2F")
        return f"postgres://{self.user}@{hosts}/{database}?target_session_attrs=read-write&connect_timeout=2"

    @property
    def settings(self) -> dict[str, Any]:  # type: ignore[override]
        options = {"target_session_attrs": "read-write", "connect_timeout": 2}
        return {**super().settings, "HOST": self.hosts, "OPTIONS": options}

    # The failover

    @contextlib.contextmanager
    def lagging(self) -> Iterator[None]:
        """Send the standby nothing inside the block, as a slow network does; then kill the primary."""
        with PostgresServer.connect(self) as connection:
            (pid,) = connection.execute("SELECT pid FROM pg_stat_replication").fetchone() or (0,)
        os.kill(pid, signal.SIGSTOP)  # not the receiver: what is in its socket would still arrive
        try:
            yield
        finally:
            self.kill_primary()

    def kill_primary(self) -> None:
        """Kill all processes of the primary, as if its machine had failed. It does not come back."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):  # the main process first, so that it starts no more
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop()

    def promote(self) -> None:
        """Make the standby the primary, once it has replayed what it received."""
        with self.standby.connect(autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
