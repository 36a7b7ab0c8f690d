"""The brokers of DELAYTASKS["BROKERS"], by name."""

from collections.abc import Mapping
from typing import Any

from .. import conf


def options(name: str, target: str) -> dict[str, Any]:
    """Return the options of a broker. A setting that is only a URL becomes {"url": URL}.

    target   str, the class of the target, named in the error message

    Raises ValueError if no broker has this name.
    """
    brokers = conf.get().brokers
    if name not in brokers:
        known = ", ".join(sorted(brokers)) or "none"
        raise ValueError(f'{target}: there is no broker {name!r} in DELAYTASKS["BROKERS"], which has: {known}.')
    given = brokers[name]
    return dict(given) if isinstance(given, Mapping) else {"url": given}


def check_timeout(timeout: Any, target: str) -> float:
    """Return the timeout in seconds as a float. Raises ValueError unless 0 < timeout <= 3600."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 3600:
        raise ValueError(f"{target}: timeout is {timeout!r}; give seconds, more than 0 and at most 3,600.")
    return float(timeout)


def check_name(name: Any, what: str, target: str, *, longest: int = 255, empty: bool = False) -> str:
    """Return the name if it is a printable str of at most `longest` bytes. Otherwise raise ValueError."""
    if not isinstance(name, str) or not (name or empty) or not name.isprintable() or len(name.encode()) > longest:
        raise ValueError(f"{target}: {what} is {name!r:.100}; give a printable text of at most {longest} bytes.")
    return name
