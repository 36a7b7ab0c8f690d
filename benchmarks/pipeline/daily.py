"""Divide an archive of one run into a lake with a run for each day.

DuckDB writes each day's rows as Spark would: a file for each topic, ordered alike. Each run is then committed, and
small files are merged, by the functions of the command. To save time it does less than a year of commands, with the
same rows in the end:

- Small files are merged after each of the last runs, but before that only once in a fortnight of runs. So a file may be
  larger than 8 MB by the rows of a fortnight.
- Replaced files are removed after a fortnight of runs. The command does so after a week.
- Nothing is flushed to the disk or pruned.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import duckdb

from delaytasks.pipeline import schemas
from delaytasks.pipeline.tables import archives, data_files, optimization
from delaytasks.pipeline.tables.archives import Archive
from delaytasks.pipeline.tables.lake import Lake

FORTNIGHT_RUNS = 14
# Jobs ended on these days, numbered by run. Events belong to the run of their job.
DAYS = """
    CREATE TABLE days AS SELECT id, dense_rank() OVER (ORDER BY ended_at::date) AS number FROM read_parquet({jobs})"""
WRITE = """
    COPY (
        SELECT rows.* EXCLUDE run, CAST(number AS bigint) AS run, number
        FROM read_parquet({files}, hive_partitioning = true) AS rows JOIN days ON days.id = rows.{job}
        ORDER BY number, topic, {order}
    ) TO '{folder}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (number, topic))"""
ORDERS = {archives.JOBS: ("id", "key, rows.id"), archives.EVENTS: ("job_id", "job_id, rows.id")}


class UnsyncedLake(Lake):
    """A lake whose files are not flushed to the disk."""

    def _sync(self, path: str) -> None:
        pass


def divide(source: Lake, target: Lake) -> int:
    """Fill a lake with the rows of the source's archive, day by day. Return the number of runs.

    What a killed call has done stays: the next one goes on with the run after the last.
    """
    once, lake = archives.load(source), UnsyncedLake(target.root)
    archive = archives.open_archive(lake, once.database)
    archive.jobs.create(schemas.ARCHIVED_JOBS)
    archive.events.create(schemas.ARCHIVED_EVENTS)
    parts = Path(target.path("parts"))
    written = parts / "runs"
    if not written.exists():
        shutil.rmtree(parts, ignore_errors=True)
        written.write_text(str(write(once, parts)))
    runs = int(written.read_text())
    for run in range(archives.load(lake).jobs.run + 1, runs + 1):
        add(archives.load(lake), run, parts, fortnight=run % FORTNIGHT_RUNS == 0, last=run > runs - FORTNIGHT_RUNS)
    shutil.rmtree(parts)
    archives.publish(replace(archives.load(lake), deleting=runs, pruned=runs))
    return runs


def add(archive: Archive, run: int, parts: Path, *, fortnight: bool, last: bool) -> None:
    """Commit a run. Merge small files and remove replaced ones as the module says."""
    folder = data_files.new_folder(run)
    for table in (archive.events, archive.jobs):
        found = parts / table.name / f"number={run}"
        if found.exists():  # otherwise no job of this day has an event
            shutil.copytree(found, archive.lake.path(f"{table.name}/{folder}"))
        table = table.commit(folder, run)
        if fortnight or last:
            table = optimization.merge(table)
        if fortnight and table.log is not None:
            table.log.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def write(once: Archive, parts: Path) -> int:
    """Write the files of all runs into the folder. Return the number of runs."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")  # with more threads a topic would have several files for a day
        connection.execute("SET TimeZone = 'UTC'")
        paths = {table.name: [once.lake.path(each.path) for each in table.files] for table in (once.jobs, once.events)}
        connection.execute(DAYS.format(jobs=paths[archives.JOBS]))
        for table, (job, order) in ORDERS.items():
            (parts / table).parent.mkdir(parents=True, exist_ok=True)
            connection.execute(WRITE.format(files=paths[table], job=job, order=order, folder=parts / table))
        (runs,) = connection.execute("SELECT max(number) FROM days").fetchone() or (0,)
    return int(runs)
