"""A tenant that moves from one database to another and back, while its timeouts fall due and new ones are scheduled."""

import random
import signal
import subprocess
import sys

from .. import ledger
from . import ALIASES
from .trial import SETTLE_SECONDS, Fleet, Result

TENANT = "acme"
MODULE = "tests.torture.fleet.tenant"
KILL_WITHIN_SECONDS = 0.2  # of the start of a move
MOVE_SECONDS = 60.0


def run(fleet: Fleet, result: Result, *, seconds: float = 20, per_second: int = 20, kills: int = 2) -> None:
    """Move the tenant there and back for `seconds`; the first `kills` tries of each move are killed. `fleet` works."""
    from delaytasks.models import Topic

    from . import TENANT_TOPIC

    for alias in ALIASES:
        Topic.objects.using(alias).get_or_create(name=TENANT_TOPIC)  # this process has no handlers
    _program(fleet, "create", TENANT, ALIASES[0]).wait(MOVE_SECONDS)
    web, chance = _program(fleet, "schedule", TENANT, str(seconds), str(per_second)), random.Random(0)
    home, moves = 0, 0
    while web.poll() is None:
        there = 1 - home
        for _ in range(kills):
            move = _program(fleet, "move", TENANT, ALIASES[home], ALIASES[there])
            fleet.arena.hold(chance.uniform(0, KILL_WITHIN_SECONDS))
            move.send_signal(signal.SIGKILL)
            move.wait()
        status = _program(fleet, "move", TENANT, ALIASES[home], ALIASES[there]).wait(MOVE_SECONDS)
        if status:
            result.broken.append(f"move to {ALIASES[there]} ended with {status}")
            break
        home, moves = there, moves + 1
    if web.wait(MOVE_SECONDS):
        result.broken.append(f"the process that schedules ended with {web.returncode}")
    if left := fleet.arena.until_quiet(lambda: sum(map(fleet.live, ALIASES)), seconds=SETTLE_SECONDS):
        result.broken.append(f"tenant: {left} jobs are live {SETTLE_SECONDS:.0f} s after the last move")
    result.facts["tenant: moves; each killed before"] = f"{moves}; {kills} times"
    _check(fleet, result)


def _program(fleet: Fleet, *arguments: str) -> "subprocess.Popen[bytes]":
    process = fleet.arena.start(f"tenant-{len(fleet.arena.processes)}", [sys.executable, "-m", MODULE, *arguments])
    process.await_line("ready.")
    return process.popen


def _check(fleet: Fleet, result: Result) -> None:
    wanted = {e["key"]: e for e in ledger.read(fleet.arena.ledger) if e["kind"] == "scheduled"}
    effects: dict[str, list[int]] = {}
    where: dict[str, int] = dict.fromkeys(ALIASES, 0)
    for alias in ALIASES:
        for key, at_ms in fleet.rows(alias, f"SELECT key, at_ms FROM fleet_effect WHERE key LIKE '{TENANT}:%'"):
            effects.setdefault(key, []).append(at_ms)
            where[alias] += 1
    for what, keys in {
        "lost": wanted.keys() - effects.keys(),
        "took effect, and nobody scheduled them": effects.keys() - wanted.keys(),
        "took effect twice": {key for key, times in effects.items() if len(times) > 1},
        "early": {key for key, e in wanted.items() if min(effects.get(key, [e["due_ms"]])) < e["due_ms"]},
    }.items():
        if keys:
            result.broken.append(f"tenant: {len(keys)} timeouts {what}, such as {sorted(keys)[:3]}")
    late = sorted(effects[key][0] - e["due_ms"] for key, e in wanted.items() if key in effects)
    result.facts["tenant: timeouts"] = f"{len(wanted)}, of them in {', '.join(f'{n} {a}' for a, n in where.items())}"
    refused = sum(e["refused"] > 0 for e in wanted.values())
    result.facts["tenant: scheduled with an old home"] = f"{refused}, and then in the new one"
    if late:
        result.facts["tenant: late"] = f"p50 {late[len(late) // 2]} ms, p99 {late[len(late) * 99 // 100]} ms"
