"""Make twelve failures in turn, and see which alert fires and that its page helps: `python -m tests.gameday --help`.

Exit status 1 if an alert did not fire, what the page says did not help, or a promise was broken; 3 if nothing was
evaluated, because Prometheus is not installed.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
NOT_EVALUATED = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gameday", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only failures whose name contains this text; writes no document")
    parser.add_argument("--keep", action="store_true", help="keep the logs after a successful run")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    os.environ["DELAYTASKS_TEST_DB"] = "postgres"
    import django

    django.setup()
    from . import prometheus, report

    if not prometheus.is_installed():
        print(
            "NOT RUN: no alert was evaluated, because there is no prometheus here. Install Debian's package prometheus."
        )
        return NOT_EVALUATED
    directory = Path(tempfile.mkdtemp(prefix="gameday-"))
    print(f"Logs: {directory}", flush=True)
    began = time.monotonic()
    results = run(options.only, directory)
    table = report.table(results, (time.monotonic() - began) / 60)
    print("\n" + table)
    failed = [result for result in results if result.trouble]
    if not options.only:
        report.publish(table)
    for result in results:
        if result.missing:
            print(f"NOT RUN: {result.failure}: {result.missing}.")
    for result in failed:
        print(f"FAILED: {result.failure}: {result.trouble}")
    if not failed and not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failed else 0


def run(only: str, directory: Path) -> list[Any]:
    from . import drill, rules
    from .environment import installation
    from .failures import FAILURES
    from .prometheus import PrometheusServer

    known = rules.read(rules.load())
    results = []
    with installation(directory) as (there, targets), PrometheusServer(targets) as prometheus:
        drill.await_scraped(prometheus)
        for number, failure in enumerate(failure for failure in FAILURES if only in failure.name):
            rule = known[failure.alert]
            print(f"{time.strftime('%H:%M:%S')} {failure.name} ...", flush=True)
            try:
                result = drill.run(there, prometheus, failure, rule, seed=number)
            except Exception as error:
                traceback.print_exc()
                trouble = f"{type(error).__name__}: {error}"
                result = drill.Result(failure.name, failure.alert, rule.severity, rule.page, trouble=trouble)
            print(f"{time.strftime('%H:%M:%S')} {result}", flush=True)
            results.append(result)
    return results


if __name__ == "__main__":
    sys.exit(main())
