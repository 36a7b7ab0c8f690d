"""A database with a number of million jobs, and the commands that are measured on it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import benchmark_postgres
from tests.support.servers import PostgresServer

from . import measuring, rows
from .measuring import Cost

# Minimal WAL speeds up the fill; the measured commands are still durable.
FILLING = {"wal_level": "minimal", "max_wal_senders": "0", "maintenance_work_mem": "512MB"}


@dataclass(frozen=True)
class BenchmarkDatabase:
    """A filled database.

    lake   folder of the pipeline's files
    conf   Spark options
    """

    server: PostgresServer
    database: str
    millions: float
    lake: Path
    conf: tuple[str, ...] = ()

    @property
    def leader(self) -> int:
        """The process id of the server, the parent of its backends."""
        assert self.server.process is not None
        return self.server.process.pid

    @property
    def keywords(self) -> str:
        """The libpq connection string."""
        return f"host={self.server.directory} user={self.server.user} dbname={self.database}"

    @property
    def env(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.server.url(self.database), "CELERY_BROKER_URL": "memory://",
            "DJANGO_SETTINGS_MODULE": "project.settings",
        }  # fmt: skip

    def sql(self, statement: str) -> tuple[Any, ...]:
        """Run a statement; return its first row, or ()."""
        with self.server.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchone() or () if cursor.description else ()

    def run_command(self, question: str, *more: str, codes: tuple[int, ...] = (0,)) -> tuple[Cost, dict[str, Any]]:
        """Run `manage.py delaytasks pipeline QUESTION`; return its cost and result. Raises measuring.Failed."""
        options = [part for option in self.conf for part in ("--conf", option)]
        command = ["manage.py", "delaytasks", "pipeline", question, "--lake", str(self.lake), "--json", *more, *options]
        cost = measuring.run(command, self.env, self.leader, codes=codes)
        return cost, json.loads(cost.output)

    def run_engine(self, engine: str, question: str, out: Path, *more: str) -> Cost:
        """Run the same question with another engine, which writes its result to `out`; return the cost."""
        command = ["-m", "benchmarks.pipeline.beside", engine, question, self.keywords, str(out), *more]
        return measuring.run(command, {}, self.leader, server_too=engine == "postgres")


@contextmanager
def filled(
    server: PostgresServer, millions: float, folder: Path, conf: tuple[str, ...], back_days: int = rows.BACK_DAYS
) -> Iterator[BenchmarkDatabase]:
    """Create and fill a database; drop it after the block."""
    database = BenchmarkDatabase(
        server, f"jobs_{round(millions * 1000)}k", millions, folder / f"lake-{millions:g}", conf
    )
    server.make_database(database.database)
    measuring.run(["manage.py", "migrate", "-v0"], database.env)
    with server.connect(database.database, autocommit=True) as connection:
        rows.fill(connection, round(millions * 1_000_000), back_days)
    yield database
    with server.connect(autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {database.database}")


def server() -> PostgresServer:
    return benchmark_postgres(**FILLING)
