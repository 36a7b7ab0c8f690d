"""Divide an archive of one run into a lake with a run for each day.

DuckDB writes each day's rows as Spark would: a file for each topic, ordered alike. Each run is then committed, marked
as pruned and followed by a compaction, by the functions of the command.
"""

import shutil
from pathlib import Path

import duckdb

from delaytasks.pipeline import schemas
from delaytasks.pipeline.applications import archive as command
from delaytasks.pipeline.tables import archives, delta, optimization
from delaytasks.pipeline.tables.lake import Lake

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


def divide(source: Lake, target: Lake) -> int:
    """Fill an empty lake with the rows of the source's archive. Return the number of runs."""
    once = archives.load(source)
    archive = archives.open_archive(target, once.database)
    archive.jobs.create(schemas.ARCHIVED_JOBS)
    archive.events.create(schemas.ARCHIVED_EVENTS)
    parts = Path(target.path("parts"))
    runs = write(once, parts)
    for run in range(1, runs + 1):
        folder = delta.new_folder(run)
        for table in ORDERS:
            found = parts / table / f"number={run}"
            if found.exists():
                found.rename(target.path(f"{table}/{folder}"))
            else:
                Path(target.path(f"{table}/{folder}")).mkdir()  # no job of this day has an event
        archive = command.commit(archives.load(target), folder)
        archive = archives.mark_pruned(archives.mark_deleting(archive, run), run, run * command.DAY_MS)
        optimization.compact(archive)
    shutil.rmtree(parts)
    return runs


def write(once: archives.Archive, parts: Path) -> int:
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
