"""Cancel a quarter of the pending jobs while no worker runs."""

from ..drivers import DriverFailed
from ..plan import Form, Measured, Options
from ..stand import Testbed
from .schedule import SOON

HOW = {"one": "one call per job", "bulk": "one bulk call for all"}


def form(how: str) -> Form:
    def measure(testbed: Testbed, options: Options) -> Measured:
        count = options.jobs // 4
        testbed.do("schedule", how="bulk" if testbed.can("schedule.bulk") else "one", count=options.jobs, delay=SOON)
        testbed.analyze()
        answer = testbed.do("cancel", how=how, count=count)
        if answer["cancelled"] != count:
            raise DriverFailed(f"{testbed.label} cancelled {answer['cancelled']} of {count}.")
        return Measured(count / answer["seconds"])

    return Form("cancel", how, "jobs/s", measure, needs=f"cancel.{how}", note=HOW[how])


FORMS = [form(how) for how in HOW]
