"""The order of a run: in each round each form, and in each form each contestant in turn."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from .drivers import DriverFailed
from .plan import Form, Measured, Options
from .report import shown
from .results import Result
from .stand import Stand

FAILURES = 2  # of one contestant in one form; then it is not asked again


class Run:
    """Takes the figures of all stands and puts them into `result`; `save` is called after each."""

    def __init__(self, stands: Sequence[Stand], options: Options, result: Result, save: Callable[[], None]) -> None:
        self.stands, self.options, self.result, self.save = stands, options, result, save
        self.failed: dict[tuple[str, str, str], int] = {}

    def scenario(self, forms: Sequence[Form]) -> None:
        """All rounds of one scenario."""
        for repeat in range(self.options.repeats):
            for form in forms:
                for stand in self._turn(form, repeat):
                    self.figure(form, stand, repeat)

    def _turn(self, form: Form, repeat: int) -> list[Stand]:
        if not form.runs(repeat, self.options.repeats):
            return []
        fits = [stand for stand in self.stands if form.fits(stand.name, stand.said["can"], stand.database)]
        first = repeat % len(fits) if fits else 0
        return fits[first:] + fits[:first]  # nobody is always the first, or behind the same

    def figure(self, form: Form, stand: Stand, repeat: int) -> None:
        """One figure; a contestant that fails is noted, and the others go on."""
        name = (form.scenario, form.name, stand.label)
        if self.failed.get(name, 0) >= FAILURES:
            return
        begun = time.monotonic()
        try:
            stand.revive()
            stand.clear()
            measured = form.measure(stand, replace(self.options, database=stand.database))
        except DriverFailed as error:
            self.failed[name] = self.failed.get(name, 0) + 1
            self.result.notes.append(f"{form.scenario} {form.name}, round {repeat + 1}: {str(error).splitlines()[0]}")
            say(f"{' '.join(name)}: {error}")
        else:
            for each in [measured] if isinstance(measured, Measured) else measured:
                self._keep(form, stand, each, f"round {repeat + 1}, {time.monotonic() - begun:.0f} s")
        self.save()

    def _keep(self, form: Form, stand: Stand, each: Measured, when: str) -> None:
        name, unit = each.form or form.name, each.unit or form.unit
        figure = self.result.figure(form.scenario, name, stand.label, unit, each.better or form.better)
        figure.add(each.value, dict(each.more))
        if form.note:
            self.result.forms[f"{form.scenario} {form.name}"] = form.note
        more = ", ".join(f"{name} {shown(number)}" for name, number in each.more.items() if not math.isnan(number))
        say(f"{form.scenario} {name}, {stand.label}: {shown(each.value)} {unit} ({when}{'; ' * bool(more)}{more})")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
