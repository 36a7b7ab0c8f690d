"""`make pipeline-demo`: simulate a month of the shop, plant faults, and run the data pipeline on it.

Needs no installed Java, no other server and no browser. ORDERS (default: 2000) is the number of orders; all files are
written to VAR_DIR. The exit code is 0 if the audit found exactly the planted faults.
"""

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .spark_server import ServerFailed, SparkServer, end_with_parent

if TYPE_CHECKING:
    from .faults import Fault

BASE = Path(__file__).resolve().parents[2]
RULE = BASE / "project" / "shop" / "audit.toml"
PAGE = "report.html"  # the pages of the report and the audit, joined
ARCHIVED_DAYS = 10
MIN_ORDERS = 200  # fewer would not have enough closed orders for the faults
SEED = 7
ENVIRONMENT = {
    "LOG_LEVEL": "ERROR", "DJANGO_SETTINGS_MODULE": "project.settings",
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",  # few rows: to make code quick takes longer than to run it slowly
}  # fmt: skip
REMOVED_VARIABLES = (
    "DATABASE_URL",
    "REDIS_URL",
    "CELERY_BROKER_URL",
    "LAKE",
    "HTTPS",
)  # the demo uses only its own database


class Failed(Exception):
    """The demo cannot continue. The message is the reason."""


def echo(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    began = time.monotonic()
    try:
        orders, folder = read_options()
        prepare(folder)
        with SparkServer(folder / "spark.log") as server:
            echo("Starting Spark for the runs below:")
            echo_command(server.command)
            simulate(orders)
            master = server.await_start()
            check_month(master)
            planted = plant_faults()
            return compare(planted, run_pipeline(folder, master), folder, time.monotonic() - began)
    except (Failed, ServerFailed) as error:
        print(error, file=sys.stderr)
        return 1


def read_options() -> tuple[int, Path]:
    """Return the number of orders and the folder for all files, from environment variables. Raises Failed."""
    text = os.environ.get("ORDERS") or "2000"
    if not (text.isascii() and text.isdigit() and int(text) >= MIN_ORDERS):
        raise Failed(f"ORDERS={text} is not valid: use a whole number of at least {MIN_ORDERS}.")
    return int(text), Path(os.environ.get("VAR_DIR") or BASE / "var").resolve() / "pipeline-demo"


def prepare(folder: Path) -> None:
    """Create the demo's own, empty shop."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in REMOVED_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT, VAR_DIR=str(folder))
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    call_command("delaytasks", "timeouts", "apply", "--overdue", "run", stdout=StringIO())


def simulate(orders: int) -> None:
    from .month import DAYS, Month

    echo(f"\nSimulating {DAYS} days of the shop with {orders:,} orders:")
    with gateway():
        Month(orders, random.Random(SEED), echo).run()


@contextmanager
def gateway() -> Iterator[None]:
    """Run the fake payment gateway on loopback, without delays."""
    from django.conf import settings

    from project.shop.gateway import FakeGateway

    with FakeGateway(hang_seconds=0, quiet=True) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings.SHOP_GATEWAY_URL = server.url
        yield
        server.shutdown()


def plant_faults() -> "list[Fault]":
    from .faults import plant

    planted = plant(random.Random(SEED), ARCHIVED_DAYS)
    echo(f"\nPlanting {len(planted)} faults with SQL:")
    for fault in planted:
        echo(f"  {fault.key:<12} {fault.description}")
    return planted


def check_month(master: str) -> None:
    """Audit the month on this Spark master before faults are planted. Raises Failed if the audit finds one."""
    from .month import catch_up

    with gateway():
        catch_up()
    echo("\nAudit of the month, as it was:")
    audit = manage("audit", "--rule", str(RULE), master=master, may_fail=True)
    echo(f"  {len(list(violations(audit)))} faults; {count_correct(audit):,} jobs are correct")
    if found := list(violations(audit)):
        raise Failed(f"The month has faults, though none was planted yet: {found}.")


def run_pipeline(folder: Path, master: str) -> dict[str, Any]:
    """Run the archive, the report and the audit on this Spark master, and join their pages.

    Return the audit's result. Raises Failed.
    """
    from delaytasks.pipeline.page import page

    from .month import catch_up

    with gateway():
        catch_up()
    echo("\nMoving older jobs to the archive:")
    archive = manage("archive", "--older-than-days", str(ARCHIVED_DAYS), master=master)
    echo(f"  {archive['pruned']:,} jobs with {archive['events']:,} events, in {archive['partitions']} partitions")
    echo("\nReport on the tables and the archive:")
    report = manage("report", master=master)
    echo(f"  {report['rows']:,} rows by topic and hour; upcoming spikes: {report['herds']}")
    echo("\nAudit with the rules in project/shop/audit.toml:")
    audit = manage("audit", "--rule", str(RULE), master=master, may_fail=True)
    texts = [Path(each["page"]).read_text(encoding="utf-8") for each in (report, audit)]
    (folder / PAGE).write_text(page.join("Timeouts and audit of the demo", texts), encoding="utf-8")
    return audit


def manage(subcommand: str, *args: str, master: str, may_fail: bool = False) -> dict[str, Any]:
    """Run `manage.py delaytasks pipeline` on a Spark master and return its JSON result.

    Raises Failed if there is no JSON result, or if the exit code is not 0, nor 1 (faults) if `may_fail`.
    """
    arguments = ["delaytasks", "pipeline", subcommand, *args, "--master", master]
    echo_command(arguments)
    command = [sys.executable, str(BASE / "manage.py"), *arguments, "--json"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=end_with_parent)
    try:
        result: dict[str, Any] = json.loads(completed.stdout)
    except ValueError:
        raise Failed(f"The command failed ({completed.returncode}): {completed.stderr.strip()}") from None
    if completed.returncode > (1 if may_fail else 0):
        raise Failed(completed.stderr.strip())
    return result


def echo_command(arguments: list[str]) -> None:
    words = (os.path.relpath(each, BASE) if os.path.isabs(each) else each for each in arguments)
    echo(f"  $ manage.py {shlex.join(words)}")


def compare(planted: "list[Fault]", audit: dict[str, Any], folder: Path, seconds: float) -> int:
    """Print which faults the audit found. Return 0 if they are exactly the planted ones, else 1."""
    expected = {(fault.audit_class, fault.key) for fault in planted}
    found = set(violations(audit))
    for name, key in sorted(expected | found):
        status = (
            "found" if (name, key) in expected & found else "NOT FOUND" if (name, key) in expected else "NOT PLANTED"
        )
        echo(f"  {name:<11} {key:<12} {status}")
    echo(f"  {len(expected & found)} of {len(expected)} planted faults found, {len(found - expected)} others; "
         f"{count_correct(audit):,} jobs are correct")  # fmt: skip
    echo(f"\nReport and audit: {folder / PAGE}")
    echo(f"Total time: {seconds:.0f} s.")
    return 0 if found == expected else 1


def count_correct(audit: dict[str, Any]) -> int:
    return sum(rule["classes"][name]["count"] for rule in audit["rules"] for name in ("kept", "open"))


def violations(audit: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (class, key) of each violation. Raises Failed if the audit lists only a sample of a class."""
    for rule in audit["rules"]:
        for name, result in rule["classes"].items():
            if not result["must_be_empty"]:
                continue
            if result["count"] > len(result["samples"]):
                raise Failed(
                    f"{rule['name']}: {result['count']} {name}, but the audit lists only {len(result['samples'])}."
                )
            yield from ((name, sample["key"]) for sample in result["samples"])


if __name__ == "__main__":
    sys.exit(main())
