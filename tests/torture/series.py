"""A series of trials: each fault alone, then combinations; each kind of installation is set up once."""

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import trial
from .environment import Arena, arena
from .faults import Fault
from .installations import INSTALLATIONS
from .trial import NOT_RUN, Verdict

AT_ONCE = 3  # the most faults of a combination


def run(
    faults: Sequence[Fault], directory: Path, database: str, chance: random.Random, minutes: float
) -> Iterator[Verdict]:
    """Yield the verdict of each trial."""
    deadline = time.monotonic() + minutes * 60
    plain = [fault for fault in faults if not fault.alone]
    for kind in dict.fromkeys(fault.arena for fault in faults if fault.alone):
        special = [fault for fault in faults if fault.arena == kind]
        missing = sorted({program for fault in special for program in fault.needs if shutil.which(program) is None})
        if missing:
            yield from (Verdict([f.name], trouble=f"{NOT_RUN}: there is no {', '.join(missing)} here") for f in special)
            continue
        with INSTALLATIONS[kind](directory / kind, database) as there:
            yield from _trials(there, [[fault] for fault in special], chance)
    if plain:
        with arena(directory / "plain", database=database) as there:
            yield from _trials(there, [[fault] for fault in chance.sample(plain, len(plain))], chance)
            while time.monotonic() < deadline and len(plain) > 1:
                yield from _trials(there, [combination(plain, chance)], chance)


def combination(faults: Sequence[Fault], chance: random.Random) -> list[Fault]:
    """Choose two or three faults that use different parts."""
    chosen: list[Fault] = []
    for fault in chance.sample(faults, len(faults)):
        if len(chosen) < AT_ONCE and not any(fault.uses & other.uses for other in chosen):
            chosen.append(fault)
    return chosen


def _trials(there: Arena, plan: Sequence[Sequence[Fault]], chance: random.Random) -> Iterator[Verdict]:
    if not there.crew:
        there.populate()
    for faults in plan:
        yield trial.run(there, faults, seed=chance.randrange(10**6))
