"""Kill a PostgreSQL primary under load and promote its standby: `python -m tests.torture.failover --help`.

A standby is synchronous, with a right clock and with a wrong one, or asynchronous and a second behind. Ordinary jobs
are scheduled, changed and run all the time, orders with a declared timeout are paid, and schedules run each second.
Exit status 1 if anything was lost, done twice or early; with an asynchronous standby, if the lost second does not
explain it.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.failover", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=30, help="length of each case")
    parser.add_argument("--orders", type=int, default=6_000)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of cases; default: all")
    parser.add_argument("--report", type=Path, default=Path("var/torture/failover.txt"))
    options = parser.parse_args()
    os.environ["DELAYTASKS_TEST_DB"] = "postgres"
    import django

    django.setup()
    from . import trial

    texts, broken = [], False
    for name in options.cases or trial.CASES:
        case = trial.CASES[name]
        with (
            tempfile.TemporaryDirectory(prefix="failover-") as directory,
            trial.installation(Path(directory), case) as there,
        ):
            result = trial.run(there, case, orders=options.orders, seconds=options.seconds)
        texts.append(f"== {name}\n{result.text()}")
        print(texts[-1], flush=True)
        broken |= bool(result.broken)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text("\n".join(texts) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
