"""Public holidays by country and region, from the library `holidays`."""

import functools
import warnings
from collections.abc import Mapping
from datetime import date
from types import MappingProxyType

from ..exceptions import BadCalendar

COMPARED_YEARS = range(2024, 2041)  # fixed: years relative to today would change each definition every new year


def check_region(country: str, region: str | None) -> None:
    """Raise BadCalendar if the library is not installed, or does not know the country or the region."""
    of_year(country, region, 2024)


@functools.cache
def of_year(country: str, region: str | None, year: int) -> Mapping[date, str]:
    """Return the names of one year's holidays by date. Raises BadCalendar.

    Each year is a separate read-only dict: the library's own objects load further years on demand, which is not
    thread-safe.
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
    """Return the holidays of COMPARED_YEARS, sorted: they show whether two versions of the library differ."""
    with warnings.catch_warnings(action="ignore"):  # the library warns of years that it does not know
        return sorted(day for year in COMPARED_YEARS for day in of_year(country, region, year))
