"""The archive under SIGKILL, in each of its steps: DuckDB compares the rows before with lake and tables after."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pyarrow import parquet

from delaytasks.models import Job
from delaytasks.pipeline.applications import archive
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables import archives, data_files, delta
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.states import State
from tests.support import archived_rows
from tests.support.servers import PATIENCE, PostgresServer, die_with_parent, tail, wait_until

from .test_command import CONF

pytestmark = pytest.mark.tools  # minutes of CPU

ROOT = Path(__file__).parents[2]
DAY_JOBS, EVENTS = 1_200, 3  # jobs that ended on one day, of one topic: four batches of the pruning
NEWEST = 31  # days ago: of the jobs that are never archived
RUN_SECONDS = 120
WRITING_SECONDS = 2.0  # how long a run writes, from the first folder to the commit

WRITING, BETWEEN, COMMITTED = "writing", "between the commits", "before the pruning"
PRUNING, MERGING = "pruning", "merging"
STEPS = [WRITING, BETWEEN, COMMITTED, PRUNING, MERGING]
OTHER = "another step"

INSERT_JOBS = """
    INSERT INTO delaytasks_job (topic, key, state, due_at, created_at, ended_at, ttr_ms, attempt, failures, body,
                                worker, error)
    SELECT 'order.close', '张:' || day || '-' || n, %s, at, at, at + interval '1 second', 60000, 2, 0,
           jsonb_build_object('number', n, 'to', 'Zoë "张"'), '', CASE n %% 5 WHEN 0 THEN E'line\\nline' ELSE '' END
    FROM generate_series(%s, %s) day, generate_series(1, %s) n,
         LATERAL (SELECT date_trunc('second', now()) - make_interval(days => day, mins => n %% 997) AS at) AS moment"""
INSERT_EVENTS = """
    INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error,
                                     reason)
    SELECT id, CASE number WHEN %s THEN 'finished' ELSE 'failed' END, number, ms, ms + number, ms + 10 * number,
           'w1', '', '', 'so'
    FROM delaytasks_job, generate_series(1, %s) number,
         LATERAL (SELECT floor(extract(epoch FROM due_at) * 1000)::bigint AS ms) AS times"""


def fill(oldest: int) -> None:
    """Insert jobs that ended on each day from `oldest` to NEWEST, with their events."""
    with connection.cursor() as cursor:
        cursor.execute(INSERT_JOBS, [State.FINISHED, NEWEST, oldest, DAY_JOBS])
        cursor.execute(INSERT_EVENTS, [EVENTS, EVENTS])


@contextmanager
def archiving(server: PostgresServer, directory: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run manage.py delaytasks pipeline archive in a process group, which is killed at the end of the block."""
    environment = {
        **os.environ, "DATABASE_URL": server.url(connection.settings_dict["NAME"]), "VAR_DIR": str(directory),
        "DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "delaytasks", "pipeline", "archive", "--master", "local[2]",
             "--lake", str(directory / "lake"), *CONF, *words],
            cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, preexec_fn=die_with_parent(signal.SIGKILL),
        )  # fmt: skip
    try:
        yield process
    finally:
        kill(process)


def lock_is_free() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        return bool(cursor.fetchone()[0] == 0)


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# What is seen of a run from outside


@dataclass(frozen=True)
class Seen:
    """Versions of the two tables, folders of runs on the disk, jobs in the database, and the last pruned run."""

    events: int
    jobs: int
    folders: int
    rows: int
    pruned: int

    @classmethod
    def now(cls, lake: Lake) -> "Seen":
        versions = (
            len(list(Path(lake.path(name), delta.LOG).glob("*.json"))) for name in (archives.EVENTS, archives.JOBS)
        )
        return cls(*versions, len(data_files.run_folders(lake, archives.JOBS)), Job.objects.count(),
                   lake.document(archives.DOCUMENT, archives.FORMAT)["pruned"])  # fmt: skip


def moments(lake: Lake, chance: random.Random) -> dict[str, Callable[[Seen], bool]]:
    """Return step -> whether the run is in it. `lake` is as the last run left it.

    A run first completes what a killed one has left: the missing commit of its jobs, and its pruning.
    """
    before, found = Seen.now(lake), archives.load(lake)
    left = found.events.run > found.jobs.run
    gone = chance.randrange(1, DAY_JOBS - archive.pruner.BATCH_JOBS)
    return {
        WRITING: lambda seen: seen.folders > before.folders,
        BETWEEN: lambda seen: seen.events > before.events,
        COMMITTED: lambda seen: seen.jobs > before.jobs + left,
        PRUNING: lambda seen: seen.rows <= before.rows - gone,
        MERGING: lambda seen: seen.pruned > found.events.run,
    }


def step(lake: Lake) -> str:
    """Return the step in which a run was killed, by what it has left."""
    found = archives.load(lake)
    if found.events.run > found.jobs.run:
        return BETWEEN
    if any(run > found.events.run for run in data_files.run_folders(lake, archives.JOBS).values()):
        return WRITING
    if not found.unpruned:
        merged = len(found.jobs.files) == len(found.events.files) == 1
        return OTHER if merged else MERGING
    run = found.jobs.run
    ids = [
        row["id"] for each in found.jobs.run_files(run)
        for row in parquet.read_table(lake.path(each.path), columns=["id", "run"], partitioning=None).to_pylist()
        if row["run"] == run
    ]  # fmt: skip
    remaining = Job.objects.filter(pk__in=ids).count()
    return COMMITTED if remaining == len(ids) else PRUNING if remaining else OTHER


def killed(process: subprocess.Popen[bytes], lake: Lake, wanted: str, chance: random.Random, log: Path) -> None:
    """Kill a run when it is in the wanted step. Does nothing if it ends before."""
    begun = moments(lake, chance)[wanted]
    deadline = time.monotonic() + PATIENCE * RUN_SECONDS
    while process.poll() is None and not begun(Seen.now(lake)):
        assert time.monotonic() < deadline, tail(log)
        time.sleep(0.001)
    if wanted == WRITING:
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, WRITING_SECONDS))
    kill(process)


@pytest.mark.parametrize(
    ("each_step", "most"),
    [pytest.param(1, 10, id="one kill in each step"), pytest.param(4, 40, id="20 kills")],
)
def test_an_archive_that_is_killed_in_each_of_its_steps_has_each_row_once(
    spark: Any, database: Database, postgres_server: PostgresServer, tmp_path: Path, capsys: Any, each_step: int,
    most: int,
) -> None:  # fmt: skip
    """The kills are at random moments within each step, and the steps in a random order.

    A step that takes some milliseconds may be over when the process is killed: what it has left decides in which step
    it was, and the kill of the step is repeated.
    """
    oldest, chance, kills = NEWEST + most + 2, random.Random(21), Counter[str]()
    lake, log = Lake(str(tmp_path / "lake" / "default")), tmp_path / "log"
    planned = chance.sample(STEPS * each_step, len(STEPS) * each_step)
    fill(oldest)
    with archived_rows.kept():
        archive.run(spark, database, lake, older_than_days=oldest - 0.5)
        days = oldest - 1.5  # each run has a day more to archive than those that are committed
        while planned and kills.total() < most:
            committed = archives.load(lake).events.run
            with archiving(postgres_server, tmp_path, "--older-than-days", str(days)) as process:
                killed(process, lake, planned[0], chance, log)
            hit = step(lake)
            kills[hit] += 1
            if hit in planned:
                planned.remove(hit)
            days -= archives.load(lake).events.run - committed
        wait_until(lock_is_free, seconds=60, what="the server to notice the end of the killed run")
        done = archive.run(spark, database, lake, older_than_days=NEWEST + 0.5)
        figures = archived_rows.compare(lake)

    with capsys.disabled():
        print(f"\nkilled in: {dict(kills)}; before, missing, extra: {figures}")
    assert not planned, f"no kill was in {planned}"
    assert (done["left"], done["withdrawn"]) == (0, 0)
    assert 0 < Job.objects.count() <= 2 * DAY_JOBS, "the jobs of the newest days stay"
    jobs = DAY_JOBS * (oldest - NEWEST + 1)
    assert figures == {"delaytasks_job": (jobs, 0, 0), "delaytasks_jobevent": (jobs * EVENTS, 0, 0)}
