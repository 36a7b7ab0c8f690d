"""Programs of the trial of a moving tenant: `python -m tests.torture.fleet.tenant move TENANT SOURCE TARGET`.

`... schedule TENANT SECONDS PER_SECOND` is a web process that schedules timeouts and knows the tenant's home of before.
"""

import os
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import django

from ..ledger import Ledger
from . import ALIASES

DUE_WITHIN_SECONDS = 12


def create(tenant: str, home: str) -> None:
    from .models import Home

    for alias in ALIASES:
        Home.objects.using(alias).create(pk=tenant, state="here" if alias == home else "away")


def schedule(tenant: str, seconds: float, per_second: int) -> None:
    """Schedule timeouts, due soon or in a while. Each one is written down once its transaction is committed."""
    from . import moving

    ledger, chance, home = Ledger(Path(os.environ["TORTURE_LEDGER"]), "tenant"), random.Random(0), ALIASES[0]
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        n += 1
        due_ms = int((time.time() + chance.uniform(0, DUE_WITHIN_SECONDS)) * 1000)
        due_at, refused = datetime.fromtimestamp(due_ms / 1000, UTC), 0
        while True:
            try:
                moving.schedule_timeout(tenant, str(n), due_at, home)
                break
            except moving.NotHere:
                refused += 1
                home = ALIASES[(ALIASES.index(home) + 1) % len(ALIASES)]
                time.sleep(0.01)
        ledger.write("scheduled", key=f"{tenant}:{n}", due_ms=due_ms, using=home, refused=refused)
        time.sleep(1 / per_second)


def main() -> None:
    django.setup()
    what, *arguments = sys.argv[1:]
    print("ready.", flush=True)
    if what == "create":
        create(*arguments)
    elif what == "schedule":
        schedule(arguments[0], float(arguments[1]), int(arguments[2]))
    else:
        from .moving import move

        move(*arguments)
    print("done.", flush=True)


if __name__ == "__main__":
    main()
