"""Benchmark the pipeline's commands by number of rows, against PostgreSQL and DuckDB.

    python -m benchmarks.pipeline [QUESTION ...] [--sizes "1 3 10"] [--conf NAME=VALUE] [--out var/bench]

Starts its own PostgreSQL and fills it with this many million jobs, 1.5 times as many events, and orders. Runs each
command as users do, with `manage.py delaytasks pipeline`, and measures the whole process. The results of the other
engines are compared with ours. *computing* is the CPU time of all processes including the server; *peak* is the peak
memory of the command with Java and all Python processes (for PostgreSQL: of the server). Writes pipeline.json and
pipeline.md and prints the tables. Needs requirements-bench.txt, Linux, and 1 GB of disk per million.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import machine, report
from benchmarks.results import Result
from benchmarks.rounds import log

from . import place, questions
from .questions import QUESTIONS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "question", nargs="*", help=f"one or more of {', '.join(QUESTIONS)}; default: all, in this order"
    )
    parser.add_argument("--sizes", default="1 3 10", help="in millions of jobs (default: 1 3 10)")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark option")
    parser.add_argument("--out", type=Path, default=Path("var/bench"))
    args = parser.parse_args()
    unknown = set(args.question) - set(QUESTIONS)
    if unknown:
        parser.error(f"unknown question {', '.join(sorted(unknown))}: use {', '.join(QUESTIONS)}")
    args.sizes = [float(size) for size in args.sizes.split()]
    return args


def measure(args: argparse.Namespace, result: Result) -> None:
    """Measure each size; save after each figure."""
    with place.server() as server, tempfile.TemporaryDirectory(prefix="delaytasks-lake-") as folder:
        result.machine = machine.describe(server.directory, server)
        for millions in args.sizes:
            log(f"{millions:g} million jobs")
            with place.filled(server, millions, Path(folder), tuple(args.conf)) as filled:
                for name in [question for question in QUESTIONS if question in (args.question or QUESTIONS)]:
                    for measurement in QUESTIONS[name](filled):
                        measurement.add_to(result, name)
                        cost = measurement.cost
                        log(f"  {name}, {measurement.form}, {measurement.contestant}: {cost.seconds:.1f} s, "
                            f"computing {cost.computing:.1f} s, {cost.peak_mib:.0f} MiB")  # fmt: skip
                        result.save(args.out / "pipeline.json")
                questions.remove_output(filled)


def markdown(result: Result) -> str:
    about = "".join(f"- {name}: {value}\n" for name, value in result.machine.items())
    tables = "\n".join(
        f"## {name}\n\n{report.unit_table(figures)}" for name, figures in report.scenarios(result).items()
    )
    return f"## Measured on\n\n{about}\n{tables}"


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run(args: argparse.Namespace, measure: Callable[[argparse.Namespace, Result], None], name: str) -> int:
    """Measure until the end or an interruption, and write what was measured to name.json and name.md."""
    result, begun = Result(), time.monotonic()
    signal.signal(signal.SIGTERM, interrupt)  # clean up as on Ctrl-C
    try:
        measure(args, result)
    except KeyboardInterrupt:
        result.notes.append("The run was interrupted.")
    result.seconds = time.monotonic() - begun
    if result.figures:
        result.save(args.out / f"{name}.json")
        text = markdown(result) + "".join(f"\n- {note}" for note in result.notes)
        (args.out / f"{name}.md").write_text(text)
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(run(arguments(), measure, "pipeline"))
