"""Public holidays by country and region, from the library `holidays`."""

import functools
import warnings
from collections.abc import Mapping
from datetime import date
from types import MappingProxyType

from ..exceptions import BadCalendar

COMPARED_YEARS = range(2024, 2041)  # fixed: with the years around today each new year would be a change


def check_region(country: str, region: str | None) -> None:
    """Raise BadCalendar unless the library knows the country and its region, or if it is not installed."""
    of_year(country, region, 2024)


@functools.cache
def of_year(country: str, region: str | None, year: int) -> Mapping[date, str]:
    """Return the holidays of one year with their names. Raises BadCalendar.

    One object per year: the library's own objects add years when they are first asked for them, which is not
    safe in threads.
    """
    try:
        import holidays
    except ImportError:
        raise BadCalendar(
            "Public holidays need the library `holidays`: pip install delaytasks[calendars], or give dates instead."
        ) from None
    try:
        found = holidays.country_holidays(country, subdiv=region, years=year)
    except NotImplementedError:
        place = country if region is None else f"{country}, {region}"
        raise BadCalendar(
            f"The library `holidays` does not know the country or region {place!r}: give a country's ISO code and "
            "one of its regions, for example ('DE', 'BW')."
        ) from None
    return MappingProxyType({day: name for day, name in found.items() if day.year == year})


def compared_days(country: str, region: str | None) -> list[date]:
    """Return the holidays by which two versions of the library are told apart, sorted."""
    with warnings.catch_warnings(action="ignore"):  # the library does not know all years of each country
        return sorted(day for year in COMPARED_YEARS for day in of_year(country, region, year))
