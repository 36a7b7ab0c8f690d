"""A quarter of the jobs that wait are called off, while no worker runs."""

from ..drivers import DriverFailed
from ..plan import Form, Measured, Options
from ..stand import Stand
from .schedule import SOON

HOW = {"one": "one call per job", "bulk": "all of them in one bulk call"}


def form(how: str) -> Form:
    def measure(stand: Stand, options: Options) -> Measured:
        count = options.jobs // 4
        stand.do("schedule", how="bulk" if stand.can("schedule.bulk") else "one", count=options.jobs, delay=SOON)
        stand.analyze()
        answer = stand.do("cancel", how=how, count=count)
        if answer["cancelled"] != count:
            raise DriverFailed(f"{stand.label} cancelled {answer['cancelled']} of {count}.")
        return Measured(count / answer["seconds"])

    return Form("cancel", how, "jobs/s", measure, needs=f"cancel.{how}", note=HOW[how])


FORMS = [form(how) for how in HOW]
