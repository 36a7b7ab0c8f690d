"""Jobs per second that one program can schedule, due in ten minutes, while no worker runs."""

from ..plan import Form, Measured, Options
from ..stand import Stand

DELAY_SECONDS = 600.0
HOW = {
    "one": "one call per job, each in its own transaction",
    "ten": "ten jobs in one transaction",
    "bulk": "by its bulk call: a thousand jobs each, ours all at once",
}


def form(how: str) -> Form:
    def measure(stand: Stand, options: Options) -> Measured:
        stand.do("schedule", how=how, count=min(100, options.jobs), delay=DELAY_SECONDS)  # plans, scripts, connections
        stand.clear()
        answer = stand.do("schedule", how=how, count=options.jobs, delay=DELAY_SECONDS)
        return Measured(options.jobs / answer["seconds"])

    return Form("schedule", how, "jobs/s", measure, needs=f"schedule.{how}", note=HOW[how])


FORMS = [form(how) for how in HOW]
