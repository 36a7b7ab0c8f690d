"""Hurts an installation on purpose and says which promises it kept: `python -m tests.torture --help`.

Each fault by itself first, then random combinations until the time is over. The order and what the callers do
come from the seed; the moments at which processes meet do not. Exit status 1 if any promise was broken.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which order, and what the callers do")
    parser.add_argument("--minutes", type=float, default=20, help="combinations go on until then; singles always run")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--only", default="", help="faults whose name or area contains this text")
    parser.add_argument("--quick", action="store_true", help="the short run's faults")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("var/torture"),
        help="the folder for the report, and for its figures as JSON",
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and ledger also when all went well")
    parser.add_argument("--publish", type=Path, nargs="+", help="write docs/promises.md anew from these files, and end")
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    os.environ["DELAYTASKS_TEST_DB"] = asked.database
    import django

    django.setup()
    from . import report, series
    from .faults import load_all

    if asked.publish:
        report.publish(asked.publish)
        return 0
    faults = [
        fault
        for fault in load_all().values()
        if asked.database in fault.databases
        and (asked.only in fault.name or asked.only == fault.area)
        and (fault.quick or not asked.quick)
    ]
    if asked.list or not faults:
        print("\n".join(f"{fault.area:10} {fault.name}" for fault in faults) or f"No fault is called {asked.only!r}.")
        return 0 if faults else 2
    directory = Path(tempfile.mkdtemp(prefix="torture-"))
    print(f"{len(faults)} faults on {asked.database}, seed {asked.seed}. Logs and ledger: {directory}", flush=True)
    verdicts = []
    try:
        for verdict in series.run(faults, directory, asked.database, random.Random(asked.seed), asked.minutes):
            verdicts.append(verdict)
            print(report.line(verdict), flush=True)
    finally:  # also of a run that is cut short
        written = report.write(verdicts, asked.report, seed=asked.seed, database=asked.database)
    well = all(verdict.ok or not verdict.ran for verdict in verdicts)
    if well and not asked.keep:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"The report: {written}" + ("" if well else f"; what was seen: {directory}"))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
