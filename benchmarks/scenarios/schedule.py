"""Jobs per second that one process schedules while no worker runs: due in ten minutes or tomorrow.

delaytasks enters jobs into Redis only if they are due within the horizon of an hour.
"""

from ..plan import Form, Measured, Options
from ..stand import Testbed

SOON, TOMORROW = 600.0, 86_400.0
HOW = {
    "one": "one call per job, each in its own transaction",
    "ten": "ten jobs in one transaction",
    "bulk": "bulk calls: 1,000 jobs each, delaytasks all at once",
}


def form(how: str, delay: float = SOON, name: str = "", note: str = "") -> Form:
    def measure(testbed: Testbed, options: Options) -> Measured:
        testbed.do(
            "schedule", how=how, count=min(100, options.jobs), delay=delay
        )  # warm up query plans, scripts and connections
        testbed.clear()
        answer = testbed.do("schedule", how=how, count=options.jobs, delay=delay)
        return Measured(options.jobs / answer["seconds"])

    return Form("schedule", name or how, "jobs/s", measure, needs=f"schedule.{how}", note=HOW[how] + note)


FORMS = [form("one"), form("one", TOMORROW, "one-tomorrow", ", due in a day"), form("ten"), form("bulk")]
