"""Streams in processes that are killed with SIGKILL, while writers commit in any order."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection
from pyarrow import parquet

from delaytasks.models import Job, JobEvent
from delaytasks.pipeline.applications import minutes
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables import data_files, stream_tables
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.pipeline.tables.stream_tables import EVENTS
from tests.support.servers import PATIENCE, PostgresServer, die_with_parent, tail, wait_until

from ..test_command import CONF

ROOT = Path(__file__).parents[3]
START_SECONDS = 60  # of a Java
INSERT = """
    INSERT INTO delaytasks_jobevent
        (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error, reason)
    SELECT %s, 'finished', 1, 0, 0, extract(epoch FROM clock_timestamp()) * 1000, '', '', '', ''
    FROM generate_series(1, 3) RETURNING id"""


class Writer(threading.Thread):
    """Keeps three transactions open and ends them in another order; rolls back a fifth of them."""

    def __init__(self, server: PostgresServer, name: str, job_id: int, number: int) -> None:
        super().__init__(daemon=True)
        self.job_id, self.random = job_id, random.Random(number)
        self.open = {server.connect(name): list[int]() for _ in range(3)}
        self.told = threading.Event()
        self.committed: list[int] = []

    def run(self) -> None:
        while not self.told.wait(self.random.uniform(0, 0.1)):  # its pace
            connection = self.random.choice(list(self.open))
            if self.random.random() < 0.6:
                self.open[connection] += [id for (id,) in connection.execute(INSERT, [self.job_id]).fetchall()]
            else:
                self.end(connection, self.random.random() < 0.8)
        for connection in self.open:
            self.end(connection, True)
            connection.close()

    def end(self, connection: Any, good: bool) -> None:
        connection.commit() if good else connection.rollback()
        self.committed += self.open[connection] if good else []
        self.open[connection] = []


@contextmanager
def writing(server: PostgresServer, job_id: int) -> Iterator[list[Writer]]:
    writers = [Writer(server, connection.settings_dict["NAME"], job_id, number) for number in range(4)]
    for each in writers:
        each.start()
    try:
        yield writers
    finally:
        for each in writers:
            each.told.set()
        for each in writers:
            each.join(30)


class Command:
    """manage.py delaytasks pipeline stream. At the end of the block it is killed, if it still runs."""

    def __init__(self, server: PostgresServer, directory: Path, *words: str) -> None:
        self.log = directory / "log"
        given = ["--lake", str(directory / "lake"), "--master", "local[2]", *CONF, *words]
        environment = {
            **os.environ, "DATABASE_URL": server.url(connection.settings_dict["NAME"]), "VAR_DIR": str(directory),
            "DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "delaytasks", "pipeline", "stream", *given],
                cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )  # fmt: skip

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_for(self, done: Callable[[], Any], what: str) -> Any:
        def seen() -> Any:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{tail(self.log)}"
            return done()

        return wait_until(seen, seconds=START_SECONDS, what=lambda: f"{what}:\n{tail(self.log)}")

    def kill_the_run(self) -> None:
        """Kill the process that streams; the command then reports it and ends."""
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        assert self.process.wait(PATIENCE * START_SECONDS) == ExitCode.COULD_NOT_RUN


def test_a_killed_stream_has_each_committed_event_once(
    database: Database, postgres_server: PostgresServer, job: Callable[..., Job], tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake" / "default"))

    def half() -> bool:
        """Return whether a later batch than the first is being written."""
        to = stream_tables.load(lake).to
        return bool(to and any(number > to for number in data_files.run_folders(lake, EVENTS).values()))

    with (
        writing(postgres_server, job().pk) as writers,
        Command(postgres_server, tmp_path, "--every", "0.3") as first,
    ):
        first.wait_for(half, "a batch to be half written")
        first.kill_the_run()
        assert stream_tables.load(lake).to
    with Command(postgres_server, tmp_path, "--once") as last:
        assert last.process.wait(PATIENCE * START_SECONDS) == 0, tail(last.log)

    committed = sorted(id for each in writers for id in each.committed)
    found = stream_tables.load(lake)
    files = [lake.path(each.path) for each in found.events.files]
    assert (
        sorted(id for each in files for id in parquet.read_table(each, columns=["id"])["id"].to_pylist()) == committed
    )
    assert sum(each["happened"] for each in minutes.read(lake, 0)) == len(committed) == JobEvent.objects.count()
    assert max(data_files.run_folders(lake, EVENTS).values()) <= found.to, "what was half written is gone"
