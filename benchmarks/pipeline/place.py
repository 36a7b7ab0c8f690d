"""A database of so many million jobs in a server, and the project's own command in front of it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import benchmark_postgres
from tests.servers import PostgresServer

from . import measuring, rows
from .measuring import Cost

# Filled without a log, as nothing is lost if that fails; what is measured is logged and synced as ever.
FILLING = {"wal_level": "minimal", "max_wal_senders": "0", "maintenance_work_mem": "512MB"}


@dataclass(frozen=True)
class Place:
    """lake   where the pipeline's files go
    conf   Spark's options
    """

    server: PostgresServer
    database: str
    millions: float
    lake: Path
    conf: tuple[str, ...] = ()

    @property
    def leader(self) -> int:
        """The server's session, whose backends compute as well."""
        assert self.server.process is not None
        return self.server.process.pid

    @property
    def keywords(self) -> str:
        """libpq's."""
        return f"host={self.server.directory} user={self.server.user} dbname={self.database}"

    @property
    def env(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.server.url(self.database), "CELERY_BROKER_URL": "memory://",
            "DJANGO_SETTINGS_MODULE": "project.settings",
        }  # fmt: skip

    def sql(self, statement: str) -> tuple[Any, ...]:
        """The first row; () if there is none."""
        with self.server.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchone() or () if cursor.description else ()

    def asked(self, question: str, *more: str, codes: tuple[int, ...] = (0,)) -> tuple[Cost, dict[str, Any]]:
        """What `manage.py delaytasks pipeline QUESTION` costs and answers. Raises measuring.Failed."""
        options = [part for each in self.conf for part in ("--conf", each)]
        command = ["manage.py", "delaytasks", "pipeline", question, "--lake", str(self.lake), "--json", *more, *options]
        cost = measuring.run(command, self.env, self.leader, codes=codes)
        return cost, json.loads(cost.said)

    def beside(self, engine: str, question: str, out: Path, *more: str) -> Cost:
        """What another engine's answer costs, which is written to `out`."""
        command = ["-m", "benchmarks.pipeline.beside", engine, question, self.keywords, str(out), *more]
        return measuring.run(command, {}, self.leader, server_too=engine == "postgres")


@contextmanager
def filled(server: PostgresServer, millions: float, folder: Path, conf: tuple[str, ...]) -> Iterator[Place]:
    """A new database of its own, dropped at the end."""
    place = Place(server, f"jobs_{round(millions * 1000)}k", millions, folder / f"lake-{millions:g}", conf)
    server.make_database(place.database)
    measuring.run(["manage.py", "migrate", "-v0"], place.env)
    with server.connect(place.database, autocommit=True) as connection:
        rows.fill(connection, round(millions * 1_000_000))
    yield place
    with server.connect(autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {place.database}")


def server() -> PostgresServer:
    return benchmark_postgres(**FILLING)
