"""Three PostgreSQL servers and one fleet of workers: `python -m tests.torture.fleet --help`.

Each of the databases has jobs due all the time. In turn, one of them is killed, stopped so that it is silent, or
slowed down. Then a tenant moves from one to another and back while its timeouts fall due. Reports how late the jobs of
each database begin. Exit status 1 if a job was lost, early or twice, or late in a healthy database.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.fleet", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="length of each phase")
    parser.add_argument("--per-second", type=int, default=20, help="jobs due in each second in each database")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", type=Path, default=Path("var/torture/fleet.txt"))
    options = parser.parse_args()
    os.environ["DELAYTASKS_TEST_DB"] = "postgres"
    import django

    django.setup()
    from . import tenant_trial
    from .trial import installation, run

    with tempfile.TemporaryDirectory(prefix="fleet-") as directory, installation(Path(directory)) as fleet:
        result = run(fleet, seconds=options.seconds, per_second=options.per_second, workers=options.workers)
        tenant_trial.run(fleet, result, seconds=options.seconds * 3)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(result.text() + "\n")
    print(result.text())
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
