"""How long the pipeline's questions take as rows grow, and what they cost beside PostgreSQL itself and DuckDB.

    python -m benchmarks.pipeline [QUESTION ...] [--sizes "1 3 10"] [--conf NAME=VALUE] [--out var/bench]

Starts a PostgreSQL of its own and fills it with so many million jobs, one and a half times as many events, and orders.
Each question is asked as people ask it: `manage.py delaytasks pipeline`, from its start to its end. The others' answers
are compared with ours. *computing* is what all processes together had of the cores, the server's included; *peak* is
the most memory at once, of the command with its Java and all its Pythons (of PostgreSQL: the server). Writes
pipeline.json and pipeline.md, and prints the table. Needs requirements-bench.txt, Linux, and 1 GB of disk for each
million.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import machine, report
from benchmarks.results import Result
from benchmarks.rounds import say

from . import place, questions
from .questions import QUESTIONS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question", nargs="*", help=f"of {', '.join(QUESTIONS)}; default: all, in this order")
    parser.add_argument("--sizes", default="1 3 10", help="in millions of jobs (default: 1 3 10)")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="an option of Spark's")
    parser.add_argument("--out", type=Path, default=Path("var/bench"))
    found = parser.parse_args()
    unknown = set(found.question) - set(QUESTIONS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(QUESTIONS)}")
    found.sizes = [float(each) for each in found.sizes.split()]
    return found


def measure(args: argparse.Namespace, result: Result) -> None:
    """Size by size; what was measured is kept, whatever happens to the rest."""
    with place.server() as server, tempfile.TemporaryDirectory(prefix="delaytasks-lake-") as folder:
        result.machine = machine.described(server.directory, server)
        for millions in args.sizes:
            say(f"{millions:g} million jobs")
            with place.filled(server, millions, Path(folder), tuple(args.conf)) as filled:
                for name in [each for each in QUESTIONS if each in (args.question or QUESTIONS)]:
                    for asked in QUESTIONS[name](filled):
                        asked.note(name, result)
                        say(f"  {name}, {asked.form}, {asked.contestant}: {asked.cost.seconds:.1f} s, "
                            f"computing {asked.cost.computing:.1f} s, {asked.cost.peak_mib:.0f} MiB")  # fmt: skip
                        result.save(args.out / "pipeline.json")
                questions.forget(filled)


def markdown(result: Result) -> str:
    about = "".join(f"- {name}: {value}\n" for name, value in result.machine.items())
    tables = "\n".join(f"## {name}\n\n{report.unit_table(found)}" for name, found in report.scenarios(result).items())
    return f"## Measured on\n\n{about}\n{tables}"


def broken_off(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    args, result, begun = arguments(), Result(), time.monotonic()
    signal.signal(signal.SIGTERM, broken_off)  # so that nothing stays behind
    try:
        measure(args, result)
    except KeyboardInterrupt:
        result.notes.append("The run was broken off.")
    result.seconds = time.monotonic() - begun
    if result.figures:
        result.save(args.out / "pipeline.json")
        (args.out / "pipeline.md").write_text(markdown(result))
        print(markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
