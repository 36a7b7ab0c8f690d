"""The order of measurements: rounds, in each round all forms, in each form all contestants."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from .drivers import DriverFailed
from .plan import Form, Measured, Options
from .report import format_number
from .results import Result
from .stand import Testbed

MAX_FAILURES = 2  # of one contestant in one form; it is then skipped


class Run:
    """Measures all contestants, adds the figures to `result` and calls `save` after each."""

    def __init__(self, testbeds: Sequence[Testbed], options: Options, result: Result, save: Callable[[], None]) -> None:
        self.testbeds, self.options, self.result, self.save = testbeds, options, result, save
        self.failed: dict[tuple[str, str, str], int] = {}

    def scenario(self, forms: Sequence[Form]) -> None:
        """Run all rounds of one scenario."""
        for repeat in range(self.options.repeats):
            for form in forms:
                for testbed in self._turn(form, repeat):
                    self.figure(form, testbed, repeat)

    def _turn(self, form: Form, repeat: int) -> list[Testbed]:
        if not form.runs(repeat, self.options.repeats):
            return []
        fits = [testbed for testbed in self.testbeds if form.fits(testbed.name, testbed.info["can"], testbed.database)]
        first = repeat % len(fits) if fits else 0
        return fits[first:] + fits[:first]  # rotate, so that no contestant always runs first or after the same one

    def figure(self, form: Form, testbed: Testbed, repeat: int) -> None:
        """Measure one figure. If the contestant fails, add a note and continue."""
        name = (form.scenario, form.name, testbed.label)
        if self.failed.get(name, 0) >= MAX_FAILURES:
            return
        begun = time.monotonic()
        try:
            testbed.revive()
            testbed.clear()
            measured = form.measure(testbed, replace(self.options, database=testbed.database))
        except DriverFailed as error:
            self.failed[name] = self.failed.get(name, 0) + 1
            self.result.notes.append(f"{form.scenario} {form.name}, round {repeat + 1}: {str(error).splitlines()[0]}")
            log(f"{' '.join(name)}: {error}")
        else:
            for figure in [measured] if isinstance(measured, Measured) else measured:
                self._add(form, testbed, figure, f"round {repeat + 1}, {time.monotonic() - begun:.0f} s")
        self.save()

    def _add(self, form: Form, testbed: Testbed, measured: Measured, when: str) -> None:
        name, unit = measured.form or form.name, measured.unit or form.unit
        figure = self.result.figure(form.scenario, name, testbed.label, unit, measured.better or form.better)
        figure.add(measured.value, dict(measured.more))
        if form.note:
            self.result.forms[f"{form.scenario} {form.name}"] = form.note
        numbers = {name: number for name, number in measured.more.items() if not math.isnan(number)}
        more = "".join(f"; {name} {format_number(number)}" for name, number in numbers.items())
        value = format_number(measured.value)
        log(f"{form.scenario} {name}, {testbed.label}: {value} {unit} ({when}{more})")


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
