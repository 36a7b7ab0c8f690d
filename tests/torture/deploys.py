"""Rolling deploys in an arena: new code or another environment, one worker after the other."""

import signal
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import delaytasks
from delaytasks import schedule_many
from tests.support.servers import wait_until

from .constants import TTR_SECONDS
from .environment import Arena
from .ledger import Ledger

STOPS_SECONDS = 40  # for a warm shutdown and the restart by the supervisor
NEW_COUNTER = "promoted_by_new_code"
COUNTS = "redis.call('HINCRBY', counters, 'promoted', moved)"
CHANGES = {  # file of the app: (text, its replacement in the new code)
    "mirror/redis/lua/promote_due.lua": (COUNTS, f"{COUNTS}\n  {COUNTS.replace('promoted', NEW_COUNTER)}"),
    "mirror/redis/lua/reserve.lua": ("-- RETURN", "-- A newer version.\n-- RETURN"),
}
NEW_COLUMN = '\n\nJob.add_to_class("extra", models.IntegerField(null=True))\n'


def new_code(arena: Arena) -> dict[str, str]:
    """Return environment variables for a process to run a changed app: two scripts and a new column of Job."""
    tree = arena.directory / "new"
    if not tree.exists():
        app = tree / "delaytasks"
        copytree(Path(str(delaytasks.__file__)).parent, app, ignore=ignore_patterns("__pycache__"))
        for name, (before, after) in CHANGES.items():
            text = (app / name).read_text()
            assert text.count(before) == 1, f"{name} has changed: {before!r}"
            (app / name).write_text(text.replace(before, after))
        with (app / "models.py").open("a") as models:
            models.write(NEW_COLUMN)
    return {"PYTHONPATH": f"{tree}:{arena.env['PYTHONPATH']}"}


def deploy(arena: Arena, *names: str, **env: str) -> None:
    """Restart workers (default: all) one by one with this environment; each is ready before the next stops."""
    for name in names or [name for name in arena.crew if name.startswith("worker")]:
        arena.env_of[name] = env
        one, before = arena.crew[name], arena.crew[name].process
        one.signal(signal.SIGTERM)
        wait_until(lambda one=one, before=before: one.process is not before, seconds=STOPS_SECONDS, what="a restart")
        arena.await_ready(name)


def promise(arena: Arena, topic: str, keys: list[str], body: Any = None) -> None:
    """Schedule jobs due within a second, and log them."""
    ledger = Ledger(arena.ledger, "deploy")
    entries = [{"n": key, "key": key} for key in keys]
    ledger.write("asks", *entries, op="schedule", topic=topic, delay_ms=None, group=keys[0])
    schedule_many(
        [
            {"topic": topic, "key": k, "delay": i / len(keys), "ttr": TTR_SECONDS, "body": body}
            for i, k in enumerate(keys)
        ]
    )
    ledger.write("answers", *({"n": key} for key in keys), said="scheduled", job=None, due_ms=None)
