"""The test kit: run timeouts in a test without waiting, on one virtual clock.

    def test_an_unpaid_order_is_closed(timeouts):                       # a pytest fixture
        order = place_order(...)
        timeouts.assert_scheduled("order.close", subject=order, within=minutes(30))
        assert not timeouts.advance(minutes=29, seconds=59)
        assert timeouts.advance(seconds=1).outcomes == {"finished": 1}

    Timeouts                       the kit, a context manager; the fixture `timeouts` enters it
    TimeoutsTestMixin              the same for unittest: self.timeouts
    running_job()                  a plain RunningJob, to call a handler in a unit test
    seconds, minutes, hours, days  timedelta of one unit
    exceptions                     ClockConflict, RedisInUse, TooManyRuns and others

Importing this package loads nothing else: pytest loads its plugin in every project.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Run", "Runs", "Timeouts", "TimeoutsTestMixin", "days", "hours", "minutes", "running_job", "seconds",
]  # fmt: skip

# Each name is listed twice: as an import for type checkers, and with the module to import at the first use.
if TYPE_CHECKING:
    from .durations import days, hours, minutes, seconds
    from .fakes import running_job
    from .kit import Timeouts
    from .mixin import TimeoutsTestMixin
    from .runs import Run, Runs
else:
    from importlib import import_module

    _HOMES = {
        "Run": "runs", "Runs": "runs", "Timeouts": "kit", "TimeoutsTestMixin": "mixin", "running_job": "fakes",
        "days": "durations", "hours": "durations", "minutes": "durations", "seconds": "durations",
    }  # fmt: skip

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*globals(), *_HOMES])
