"""A PgBouncer in transaction mode before a PostgreSQL of the tests."""

import os
import shutil
import signal

import psycopg

from tests.support.servers import UNPRIVILEGED, PostgresServer, Server, ServerMissing, free_port, tail

LOGIN_RETRY_SECONDS = 1  # 15 unless set: a pool that could not connect does not try again before
POOL_SIZE = 3  # less than the processes of a test have connections, so that they share sessions


def pgbouncer_binary() -> str | None:
    """Return the path of the program, which Debian puts into a folder that is not on an ordinary user's PATH."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgBouncer(Server):
    """A pooler on loopback that gives each transaction one of POOL_SIZE sessions of a database."""

    name = "pgbouncer"

    def __init__(self, postgres: PostgresServer, database: str) -> None:
        super().__init__()
        self.postgres, self.database, self.port = postgres, database, free_port()
        self.config = self.directory / "pgbouncer.ini"
        self._write_config(postgres)

    def _write_config(self, postgres: PostgresServer) -> None:
        # By name: a pool that was made by an entry for "*" keeps its old address when the configuration is read again.
        lines = [
            "[databases]",
            f"{self.database} = host={postgres.directory} user={postgres.user}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = any",
            "pool_mode = transaction",
            f"default_pool_size = {POOL_SIZE}",
            "max_client_conn = 200",
            f"server_login_retry = {LOGIN_RETRY_SECONDS}",
        ]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        program = pgbouncer_binary()
        if program is None:
            raise ServerMissing("There is no pgbouncer program: `apt-get install pgbouncer`.")
        user = []
        if os.geteuid() == 0:  # it refuses to run as root, and reads its configuration again as that user
            shutil.chown(self.directory, UNPRIVILEGED)
            user = ["-u", UNPRIVILEGED]
        self.spawn([program, *user, str(self.config)])
        if not self.await_answer():
            raise ServerMissing(f"{program} does not start. Its log ends:\n{tail(self.log)}")

    def point_at(self, postgres: PostgresServer) -> None:
        """Send all transactions from now on to another server, such as a standby that was promoted."""
        assert self.process is not None
        self.postgres = postgres
        self._write_config(postgres)
        self.process.send_signal(signal.SIGHUP)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self) -> str:
        """Return the URL of the database, through the pooler."""
        return f"postgres://{self.postgres.user}@127.0.0.1:{self.port}/{self.database}"
