"""Business calendars: open hours by weekday, public holidays and exceptions. `Calendar` itself is in calendar.py.

from delaytasks import Calendar
from delaytasks.calendars import days, hours, minutes
"""

from .durations import WorkingDays, days, hours, minutes

__all__ = ["WorkingDays", "days", "hours", "minutes"]
