"""Inject faults into an installation and report broken promises: `python -m tests.torture --help`.

Runs each fault alone, then random combinations until the time is over. The seed determines the order and the
callers' actions, but not the timing. Exit status 1 if any promise was broken.
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
    parser.add_argument("--seed", type=int, default=1, help="determines the order and the callers' actions")
    parser.add_argument("--minutes", type=float, default=60, help="run combinations until then")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--only", default="", help="only faults whose name contains this text, or of this area")
    parser.add_argument("--quick", action="store_true", help="only the faults of the short run")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("var/torture"),
        help="directory for the report and its figures as JSON",
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and ledger after a successful run")
    publish = "write docs/explanation/promises.md anew from these files, and end"
    parser.add_argument("--publish", type=Path, nargs="+", help=publish)
    parser.add_argument("--list", action="store_true", help="list the faults and exit")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    os.environ["DELAYTASKS_TEST_DB"] = options.database
    import django

    django.setup()
    from . import report, series
    from .faults import load_all

    if options.publish:
        report.publish(options.publish)
        return 0
    faults = [
        fault
        for fault in load_all().values()
        if options.database in fault.databases
        and (options.only in fault.name or options.only == fault.area)
        and (fault.quick or not options.quick)
    ]
    if options.list or not faults:
        print("\n".join(f"{fault.area:10} {fault.name}" for fault in faults) or f"No fault matches {options.only!r}.")
        return 0 if faults else 2
    directory = Path(tempfile.mkdtemp(prefix="torture-"))
    print(f"{len(faults)} faults on {options.database}, seed {options.seed}. Logs and ledger: {directory}", flush=True)
    verdicts = []
    try:
        for verdict in series.run(faults, directory, options.database, random.Random(options.seed), options.minutes):
            verdicts.append(verdict)
            print(report.line(verdict), flush=True)
    finally:  # also if the run is interrupted
        written = report.write(verdicts, options.report, seed=options.seed, database=options.database)
    ok = all(verdict.ok or not verdict.ran for verdict in verdicts)
    if ok and not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"Report: {written}" + ("" if ok else f"; logs and ledger: {directory}"))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
