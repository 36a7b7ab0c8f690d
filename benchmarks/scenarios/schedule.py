"""Jobs per second that one program can schedule while no worker runs: due in ten minutes, or tomorrow.

Ours are entered into Redis only if they are due within the horizon, an hour.
"""

from ..plan import Form, Measured, Options
from ..stand import Stand

SOON, TOMORROW = 600.0, 86_400.0
HOW = {
    "one": "one call per job, each in its own transaction",
    "ten": "ten jobs in one transaction",
    "bulk": "by its bulk call: a thousand jobs each, ours all at once",
}


def form(how: str, delay: float = SOON, name: str = "", note: str = "") -> Form:
    def measure(stand: Stand, options: Options) -> Measured:
        stand.do("schedule", how=how, count=min(100, options.jobs), delay=delay)  # plans, scripts, connections
        stand.clear()
        answer = stand.do("schedule", how=how, count=options.jobs, delay=delay)
        return Measured(options.jobs / answer["seconds"])

    return Form("schedule", name or how, "jobs/s", measure, needs=f"schedule.{how}", note=HOW[how] + note)


FORMS = [form("one"), form("one", TOMORROW, "one-tomorrow", ", due in a day"), form("ten"), form("bulk")]
