"""Benchmark a report and an audit over a year of daily archives, against one archive of the same rows.

    python -m benchmarks.pipeline.year [--days 365] [--millions 1] [--conf NAME=VALUE] [--out var/bench]

Fills a database with jobs of so many days and archives all but the last day by one run. Its rows are divided into a
second lake with a run for each day, and compacted after each: see daily.py. The database is asked for its first report
and an audit with each lake, as users do, some time after the last run. The answers must be the same. *computing* is the
CPU time of all processes including the server. Writes year.json and year.md and prints the tables. Needs Linux.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.results import Result
from benchmarks.rounds import log
from delaytasks.pipeline.tables import archives
from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.pipeline.tables.optimization import SMALL_BYTES

from . import place
from .__main__ import run
from .agreeing import Disagree
from .daily import divide
from .place import BenchmarkDatabase
from .questions import RULE, Measurement

DAILY, ONCE = "daily", "once"
MIB = 1 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.year",
                                     description=(__doc__ or "").splitlines()[0])  # fmt: skip
    parser.add_argument("--days", type=int, default=365, help="number of daily archives (default: 365)")
    parser.add_argument("--millions", type=float, default=1, help="millions of jobs (default: 1)")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark option")
    parser.add_argument("--out", type=Path, default=Path("var/bench"))
    return parser.parse_args()


def measure(args: argparse.Namespace, result: Result) -> None:
    """Measure both lakes. Save after each figure. Raises Disagree if their answers differ."""
    with place.server() as server, tempfile.TemporaryDirectory(prefix="delaytasks-lake-") as folder:
        result.machine = machine.describe(server.directory, server)
        with place.filled(server, args.millions, Path(folder), tuple(args.conf), args.days + 1) as once:
            _, answer = once.run_command("archive", "--older-than-days", "1")
            daily = replace(once, lake=once.lake.with_name("daily"))
            runs = divide(lake_of(once), lake_of(daily))
            forget_the_time(lake_of(once))
            log(f"{answer['jobs']:,} jobs archived, by one run and by {runs}")
            databases = {ONCE: once, DAILY: daily}
            for name, database in databases.items():
                add_files(result, name, database)
            ask(args, result, databases)


def ask(args: argparse.Namespace, result: Result, databases: dict[str, BenchmarkDatabase]) -> None:
    rule = databases[ONCE].lake.with_suffix(".toml")
    rule.write_text(RULE)
    for question, options in {"report": [], "audit": ["--rule", str(rule)]}.items():
        answers: dict[str, Any] = {}
        for name, database in databases.items():
            cost, answer = database.run_command(question, *options, codes=(0, 1))
            rows = round(args.millions * 1_000_000)
            Measurement(f"{args.days} days", name, cost, rows).add_to(result, question)
            log(f"  {question}, {name}: computing {cost.computing:.1f} s, {cost.peak_mib:.0f} MiB")
            answers[name] = comparable(answer)
            result.save(args.out / "year.json")
        if answers[DAILY] != answers[ONCE]:
            raise Disagree(f"{question}: {json.dumps(answers)}")
        ratio = times(result, question)
        result.notes.append(f"{question}: {ratio:.2f} times the CPU time with one archive")


def times(result: Result, question: str) -> float:
    daily, once = (
        figure.number("computing_s")
        for name in (DAILY, ONCE)
        for figure in result.figures
        if (figure.scenario, figure.contestant) == (question, name)
    )
    return daily / once


def lake_of(database: BenchmarkDatabase) -> Lake:
    return Lake(str(database.lake / "default"))


def forget_the_time(lake: Lake) -> None:
    """Let the archive say that its run ended long ago: readers compare recent runs with the database."""
    archives.publish(replace(archives.load(lake), recent={}))


def comparable(answer: dict[str, Any]) -> Any:
    """Return what must be the same in both answers. Open jobs become late while the benchmark runs: no worker runs."""
    if "rules" not in answer:
        return answer["rows"]
    (rule,) = answer["rules"]
    counts = {name: each["count"] for name, each in rule["classes"].items()}
    return counts | {"late": 0, "open": counts["late"] + counts["open"]}


def add_files(result: Result, name: str, database: BenchmarkDatabase) -> None:
    """Add the number of files of each table and how many of them are small."""
    archive = archives.load(lake_of(database))
    for table in (archive.jobs, archive.events):
        figure = result.figure("files", table.name, name, "files", "less")
        figure.add(len(table.files), file_sizes(table))
        log(f"  {table.name}, {name}: {figure.values}, {figure.more}")


def file_sizes(table: Table) -> dict[str, float]:
    """Return the number of files below SMALL_BYTES, all and without the newest of each topic, and sizes in MiB."""
    newest: dict[str, int] = {}
    for each in table.files:
        newest[each.partition] = max(newest.get(each.partition, 0), each.newest_run)
    small = [each for each in table.files if each.size < SMALL_BYTES]
    return {
        "small": len(small), "small_and_not_newest": sum(each.newest_run < newest[each.partition] for each in small),
        "least_MiB": min(each.size for each in table.files) / MIB,
        "total_MiB": sum(each.size for each in table.files) / MIB,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(arguments(), measure, "year"))
