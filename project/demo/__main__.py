"""`make pipeline-demo`: a month of the shop, some faults done to it, and what the data pipeline says about both.

Needs no Java on the machine, no server and no browser. ORDERS=2000 says how many, VAR_DIR where it all lies. The exit
code is 0 only if the audit found every fault that was planted, by name, and nothing else.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .faults import Fault

BASE = Path(__file__).resolve().parents[2]
RULE = BASE / "project" / "shop" / "audit.toml"
ARCHIVED_DAYS = 10
LEAST_ORDERS = 200  # fewer have no faults to choose
SEED = 7
QUIET = {"LOG_LEVEL": "ERROR", "DJANGO_SETTINGS_MODULE": "project.settings"}
OTHERS = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "LAKE", "HTTPS")  # the demo touches nobody's tables


class Failed(Exception):
    """The demo cannot go on; the message says why."""


def say(sentence: str) -> None:
    print(sentence, flush=True)


def main() -> int:
    began = time.monotonic()
    try:
        orders, folder = wishes()
        prepare(folder)
        live(orders)
        planted = break_promises()
        return judge(planted, *ask(folder), time.monotonic() - began)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1


def wishes() -> tuple[int, Path]:
    """How many orders, and the folder. Raises Failed."""
    text = os.environ.get("ORDERS") or "2000"
    if not (text.isascii() and text.isdigit() and int(text) >= LEAST_ORDERS):
        raise Failed(f"ORDERS={text} is not a whole number from {LEAST_ORDERS} on.")
    return int(text), Path(os.environ.get("VAR_DIR") or BASE / "var").resolve() / "pipeline-demo"


def prepare(folder: Path) -> None:
    """An empty shop of the demo's own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in OTHERS:
        os.environ.pop(name, None)
    os.environ.update(QUIET, VAR_DIR=str(folder))
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def live(orders: int) -> None:
    from .month import DAYS, Month

    say(f"The shop lives through {DAYS} days with {orders:,} orders, by a clock that is set:")
    with gateway():
        Month(orders, random.Random(SEED), say).live()


@contextmanager
def gateway() -> Iterator[None]:
    """The payment gateway's stand-in, on loopback; one that hangs is not waited for."""
    from django.conf import settings

    from project.shop.gateway import Gateway

    with Gateway(hang_seconds=0, quiet=True) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings.SHOP_GATEWAY_URL = server.url
        yield
        server.shutdown()


def break_promises() -> "list[Fault]":
    from .faults import plant

    planted = plant(random.Random(SEED), ARCHIVED_DAYS)
    say(f"\nThen {len(planted)} of its promises are broken, by SQL:")
    for each in planted:
        say(f"  {each.key:<12} {each.what}")
    return planted


def ask(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the report and the audit answer; the archive comes before them. Raises Failed."""
    from .month import catch_up

    page = str(folder / "report.html")
    with gateway():
        catch_up()
    say("\nWhat is older leaves the tables for the archive:")
    found = manage("archive", "--older-than-days", str(ARCHIVED_DAYS))
    say(f"  {found['pruned']:,} jobs with {found['events']:,} events, in {found['partitions']} partitions")
    say("\nThe report, over the tables and the archive:")
    report = manage("report", "--html", page)
    say(f"  {report['rows']:,} rows of topics and hours; herds that are coming: {report['herds']}")
    say("\nThe audit, by the rules in project/shop/audit.toml:")
    return report, manage("audit", "--rule", str(RULE), may_refuse=True)


def manage(question: str, *words: str, may_refuse: bool = False) -> dict[str, Any]:
    """The answer of manage.py. Raises Failed."""
    shown = ["manage.py", "delaytasks", "pipeline", question, *words]
    say(f"  $ {shlex.join(os.path.relpath(each, BASE) if os.path.isabs(each) else each for each in shown)}")
    command = [sys.executable, str(BASE / "manage.py"), *shown[1:], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise Failed(f"It did not answer ({done.returncode}): {done.stderr.strip()}") from None
    if done.returncode and not may_refuse:
        raise Failed(done.stderr.strip())
    return answer


def judge(planted: "list[Fault]", report: dict[str, Any], audit: dict[str, Any], seconds: float) -> int:
    """0 if what was found is what was planted."""
    wanted = {(each.found_as, each.key) for each in planted}
    found = set(found_by(audit))
    for name, key in sorted(wanted | found):
        met = "found" if (name, key) in wanted & found else "NOT FOUND" if (name, key) in wanted else "NOT PLANTED"
        say(f"  {name:<11} {key:<12} {met}")
    good = sum(each["classes"]["kept"]["count"] + each["classes"]["open"]["count"] for each in audit["rules"])
    say(f"  {len(wanted & found)} of {len(wanted)} planted faults were found, {len(found - wanted)} others; "
        f"{good:,} promises are as they should be")  # fmt: skip
    say(f"\nThe report: {report['page']}")
    say(f"All of it took {seconds:.0f} s.")
    return 0 if found == wanted else 1


def found_by(audit: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(class, key) of what the audit says must not be. Raises Failed where it names only some."""
    for rule in audit["rules"]:
        for name, each in rule["classes"].items():
            if not each["must_be_empty"]:
                continue
            if each["count"] > len(each["samples"]):
                raise Failed(f"{rule['name']}: {each['count']} {name}, which are more than the audit names.")
            yield from ((name, sample["key"]) for sample in each["samples"])


if __name__ == "__main__":
    sys.exit(main())
