"""A PgBouncer in transaction mode before a PostgreSQL of the tests."""

import os
import shutil

import psycopg

from tests.support.servers import UNPRIVILEGED, PostgresServer, Server, ServerMissing, free_port, tail

POOL_SIZE = 3  # less than the processes of a test have connections, so that they share sessions


def pgbouncer_binary() -> str | None:
    """Return the path of the program, which Debian puts into a folder that is not on an ordinary user's PATH."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgBouncer(Server):
    """A pooler on loopback that gives each transaction one of POOL_SIZE sessions of the server."""

    name = "pgbouncer"

    def __init__(self, postgres: PostgresServer) -> None:
        super().__init__()
        self.postgres, self.port = postgres, free_port()
        self.config = self.directory / "pgbouncer.ini"
        lines = [
            "[databases]",
            f"* = host={postgres.directory} user={postgres.user}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = any",
            "pool_mode = transaction",
            f"default_pool_size = {POOL_SIZE}",
            "max_client_conn = 200",
        ]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        program = pgbouncer_binary()
        if program is None:
            raise ServerMissing("There is no pgbouncer program: `apt-get install pgbouncer`.")
        user = ["-u", UNPRIVILEGED] if os.geteuid() == 0 else []
        self.spawn([program, *user, str(self.config)])
        if not self.await_answer():
            raise ServerMissing(f"{program} does not start. Its log ends:\n{tail(self.log)}")

    def answers(self) -> bool:
        try:
            psycopg.connect(host="127.0.0.1", port=self.port, user=self.postgres.user, dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str) -> str:
        """Return the URL of this database of the server, through the pooler."""
        return f"postgres://{self.postgres.user}@127.0.0.1:{self.port}/{database}"
